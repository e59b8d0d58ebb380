package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// retiredRow is a retired lock domain in JSON.
type retiredRow struct {
	Domain  string `json:"retired"`
	Pending int    `json:"pending"` // pending records of the domain
	Already bool   `json:"already"` // it was retired before
}

const maxDomain = 255 // bytes

// domains are the commands about lock domains.
type domains struct {
	io      *cli.Streams
	servers *servers.Flags
}

func (c *domains) retireCommand() *cobra.Command {
	var who cli.Author
	var noZooKeeper bool
	cmd := &cobra.Command{
		Use:   "retire DOMAIN",
		Short: "Declare that a lock domain is dead for good",
		Long: `Declare that a lock domain is dead for good. Examples are an ensemble that was
rebuilt or replaced, the locks of a Redis that lost its data, and the in-process
locks of an instance that is gone. DOMAIN is the part of a record's fence before
the last slash. "doctor" lists unknown domains of open records.

Pending records of the domain count as interrupted from then on. The next request
with their key asks the resolver, or leaves the outcome unknown.

WARNING: this cannot be undone. It is your word that no process which ever held a
lock in that domain still runs or will wake up. Think of an instance that is only
cut off or suspended, and of a second site. If one wakes up, its operations are
executed twice. Make sure that the processes have ended. Silence is no proof.

The domain of the --zookeeper ensemble and the domains of this Redis's locks are
refused, because they are alive. If the ensemble came back with older data, for
example from a backup, it first gets another domain. Give the ensemble that the services use now, for
this comparison. If the services use only Redis's locks, give --no-zookeeper. A
domain with a pending record that began less than ten session time-outs ago is
refused too, because it was in use just now. (--session-timeout must be that of the
services; with the default this is 100 s.) Retiring a domain twice does nothing.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 store retire 0f6e9a7c-5a3d-4c0e-9f1b-2b9d7f0c8a11 --reason "ensemble rebuilt, all instances restarted"`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			domain := args[0]
			if domain == "" || len(domain) > maxDomain {
				return cli.WrongUse("DOMAIN has %d bytes, want 1 to %d", len(domain), maxDomain)
			}
			switch {
			case c.servers.ZooKeeper.SessionTimeout <= 0:
				return cli.WrongUse("--session-timeout %v is not positive", c.servers.ZooKeeper.SessionTimeout)
			case noZooKeeper && c.servers.ZooKeeper.Servers != "":
				return servers.ErrBothWays
			case !noZooKeeper && c.servers.ZooKeeper.Servers == "":
				return cli.WrongUse("store retire needs --zookeeper with the ensemble that the services use now, so that its domain is not retired by accident, or --no-zookeeper if they no longer use ZooKeeper")
			}
			d, err := who.Decision(cmd)
			if err != nil {
				return err
			}
			return c.retire(cmd.Context(), domain, d)
		},
	}
	who.Flags(cmd)
	servers.NoZooKeeper(cmd, &noZooKeeper)
	return cmd
}

func (c *domains) retire(ctx context.Context, domain string, d driver.Decision) error {
	b, err := c.servers.Open(ctx, servers.Need{Ensemble: true})
	if err != nil {
		return err
	}
	defer b.Close()
	if err := c.checkDead(ctx, b, domain); err != nil {
		return err
	}
	already, err := b.Store.DomainRetired(ctx, domain)
	if err != nil {
		return err
	}
	if !already {
		if err := c.checkSilent(ctx, b, domain); err != nil {
			return err
		}
	}
	if err := b.Store.RetireDomain(ctx, domain, d); err != nil {
		return err
	}
	pending := 0
	err = servers.EachOpen(ctx, b.Store, driver.OpenQuery{State: driver.StatePending, Limit: servers.Page}, func(r *driver.OpenRecord) bool {
		if r.Record.Attempt.Fence.Domain == domain {
			pending++
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("%s is retired, but its pending records could not be counted: %w", operate.OneLine(domain), err)
	}
	return c.writeRetired(retiredRow{domain, pending, already})
}

// checkDead refuses a domain that is alive.
func (c *domains) checkDead(ctx context.Context, b *servers.Backends, domain string) error {
	if domain == driver.JoinedDomain {
		return fmt.Errorf("%s is the domain of joined transactions, which end with their database: it has no locks and was not retired", domain)
	}
	if b.SQLLocks.Has(domain) {
		return fmt.Errorf("%s is the lock domain of this database: it is alive and was not retired", operate.OneLine(domain))
	}
	if b.ZooKeeper != nil && servers.OfEnsemble(domain, b.ZooKeeper.Domain()) {
		renewed, err := c.renewDomain(ctx, b)
		if err != nil {
			return err
		}
		if !renewed {
			return fmt.Errorf("%s is the lock domain of the --zookeeper ensemble: it is alive and was not retired", operate.OneLine(domain))
		}
	}
	inRedis, err := c.servers.Redis.Domains(ctx, b.Redis)
	if err != nil {
		return err
	}
	if shard := slices.Index(inRedis[:], domain); b.Redis != nil && shard >= 0 {
		return fmt.Errorf("%s is the lock domain of shard %02x in this Redis: it is alive and was not retired", operate.OneLine(domain), shard)
	}
	return nil
}

// renewDomain gives the ensemble another lock domain if it came back with older data. Services do
// so with their next request, which may not have come yet.
func (c *domains) renewDomain(ctx context.Context, b *servers.Backends) (renewed bool, err error) {
	fences := map[string]uint64{}
	err = servers.EachOpen(ctx, b.Store, driver.OpenQuery{Limit: servers.Page}, func(r *driver.OpenRecord) bool {
		fence := r.Record.Attempt.Fence
		fences[fence.Domain] = max(fences[fence.Domain], fence.Token)
		return true
	})
	if err != nil {
		return false, err
	}
	seen, err := servers.HighestFence(ctx, b.Store, b.ZooKeeper.Domain(), fences)
	if err != nil {
		return false, err
	}
	if renewed, err = b.ZooKeeper.Locker().RenewDomain(ctx, seen); renewed {
		c.io.Sayf("the ensemble came back with older data, without fence %v: its lock domain is %s from now on", seen, b.ZooKeeper.Domain())
	}
	return renewed, err
}

// silentFor is how many session time-outs must have passed since the last attempt
// began in a domain, before it can be retired.
const silentFor = 10

// checkSilent refuses a domain with a recent pending attempt, by the store's clock.
func (c *domains) checkSilent(ctx context.Context, b *servers.Backends, domain string) error {
	now, err := b.Store.Clock(ctx)
	if err != nil {
		return err
	}
	var last time.Time
	err = servers.EachOpen(ctx, b.Store, driver.OpenQuery{State: driver.StatePending, Limit: servers.Page}, func(r *driver.OpenRecord) bool {
		// An unreadable record may be of this domain.
		if (r.Err != nil || r.Record.Attempt.Fence.Domain == domain) && r.Record.Started.After(last) {
			last = r.Record.Started
		}
		return true
	})
	if err != nil {
		return err
	}
	if until := last.Add(silentFor * c.servers.ZooKeeper.SessionTimeout); !last.IsZero() && now.Before(until) {
		return fmt.Errorf("%s may be alive: an attempt under it began at %s and is pending; make sure that its processes have ended, and wait until %s (%d session time-outs of %v)",
			operate.OneLine(domain), last.UTC().Format(time.RFC3339), until.UTC().Add(time.Second).Format(time.RFC3339), silentFor, c.servers.ZooKeeper.SessionTimeout)
	}
	return nil
}

func (c *domains) writeRetired(r retiredRow) error {
	if c.io.JSON {
		return c.io.WriteJSON(r)
	}
	what := "retired"
	if r.Already {
		what = "was retired already:"
	}
	_, err := fmt.Fprintf(c.io.Out, "%s %s; %d pending records of it count as interrupted\n", what, operate.OneLine(r.Domain), r.Pending)
	return err
}
