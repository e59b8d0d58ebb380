package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

func (a *app) store() *cobra.Command {
	cmd := &cobra.Command{Use: "store", Short: "Migrate a database, accept a loss of records, or retire a lock domain", Args: cobra.NoArgs, RunE: subcommandWanted}
	cmd.AddCommand(a.storeAccept(), a.storeRetire(), a.storeMigrate(), a.storeGrants())
	return cmd
}

func (a *app) storeAccept() *cobra.Command {
	var noZooKeeper bool
	cmd := &cobra.Command{
		Use:   "accept",
		Short: "Accept that Redis lost its records",
		Long: `Accept that Redis lost its records, so that the services serve new keys again.

If a client retries a request whose record is lost, the request is executed again.
First find the operations that may be affected. The operation ID of a key is the
same as before.

The command names the store, its Redis and its znode before and after it accepts.
If the services have moved to another Redis, those that still use the old one
refuse new keys from then on.

Services without ZooKeeper have no such znode. Then give --no-zookeeper, which
accepts a clock of Redis that jumped ahead, and restart the services.`,
		Example: `  idemctl --redis redis://127.0.0.1:6379 --zookeeper 127.0.0.1:2181 store accept`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case a.redis == "" && a.database != "":
				return wrongUse("store accept is about Redis: a database that came back with older records does not tell, and there is nothing to accept")
			case noZooKeeper && a.zookeeper != "":
				return errBothWays
			case a.redis != "" && a.zookeeper == "" && !noZooKeeper:
				return wrongUse("store accept needs --zookeeper, where the services remember their Redis, or --no-zookeeper if they use no ZooKeeper")
			}
			return a.accept(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&noZooKeeper, "no-zookeeper", false, "the services use no ZooKeeper, so that only Redis remembers the loss")
	return cmd
}

func (a *app) accept(ctx context.Context) error {
	b, err := a.openBackends(ctx, need{ensemble: true})
	if err != nil {
		return err
	}
	defer b.close()
	row, err := a.aboutToAccept(ctx, b)
	if err != nil {
		return err
	}
	if row.Accepted, err = b.store.AcceptLoss(ctx); err != nil {
		return err
	}
	switch {
	case a.json:
		return writeJSON(a.stdout, row)
	case row.Accepted == 0:
		_, err = fmt.Fprintf(a.stdout, "nothing was lost in %s, so there is nothing to accept\n", row)
	case b.zookeeper == nil:
		_, err = fmt.Fprintf(a.stdout, "accepted the loss of %d shards of %s; restart its services, which then serve new keys again\n", row.Accepted, row)
	default:
		_, err = fmt.Fprintf(a.stdout, "accepted the loss of %d shards of %s; its services serve new keys again within seconds\n", row.Accepted, row)
	}
	return err
}

// acceptedRow is an accepted loss in JSON.
type acceptedRow struct {
	Accepted int    `json:"accepted_shards"`
	Prefix   string `json:"prefix"`
	Redis    string `json:"redis"`
	Witness  string `json:"witness"` // the znode, with the chroot, or ""
}

// String says whose store it is.
func (r acceptedRow) String() string {
	if r.Witness == "" {
		return fmt.Sprintf("the store with the prefix %q in Redis %s", r.Prefix, r.Redis)
	}
	return fmt.Sprintf("the store with the prefix %q in Redis %s, which its services remember in the znode %s", r.Prefix, r.Redis, r.Witness)
}

// aboutToAccept tells the operator whose loss is about to be accepted, and whom the witness
// remembers.
func (a *app) aboutToAccept(ctx context.Context, b *backends) (acceptedRow, error) {
	row := acceptedRow{Prefix: a.prefix, Redis: redisserver.Name(b.redis)}
	if row.Redis == "" { // the primary has no name of its own, so the Sentinels stand for it
		_, row.Redis, _ = strings.Cut(a.redis, "://")
		row.Redis = row.Redis[strings.LastIndexByte(row.Redis, '@')+1:]
	}
	if b.zookeeper != nil {
		_, chroot, err := a.ensemble()
		if err != nil {
			return row, err
		}
		row.Witness = chroot + a.witnessPath()
	}
	fmt.Fprintf(a.stderr, "idemctl: accepting what was lost in %s\n", row)
	if b.zookeeper == nil {
		return row, nil
	}
	data, _, err := a.witnessIn(b.zookeeper).Load(ctx)
	if err != nil {
		return row, err
	}
	var remembered struct{ Server string }
	if json.Unmarshal(data, &remembered) == nil && remembered.Server != "" && remembered.Server != row.Redis {
		fmt.Fprintf(a.stderr, "idemctl: the znode was written for the Redis at %s; if that is another one, its services refuse new keys from now on\n", operate.OneLine(remembered.Server))
	}
	return row, nil
}

// retiredRow is a retired lock domain in JSON.
type retiredRow struct {
	Domain  string `json:"retired"`
	Pending int    `json:"pending"` // pending records of the domain
	Already bool   `json:"already"` // it was retired before
}

const maxDomain = 255 // bytes

func (a *app) storeRetire() *cobra.Command {
	var who author
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
				return wrongUse("DOMAIN has %d bytes, want 1 to %d", len(domain), maxDomain)
			}
			switch {
			case a.sessionTimeout <= 0:
				return wrongUse("--session-timeout %v is not positive", a.sessionTimeout)
			case noZooKeeper && a.zookeeper != "":
				return errBothWays
			case !noZooKeeper && a.zookeeper == "":
				return wrongUse("store retire needs --zookeeper with the ensemble that the services use now, so that its domain is not retired by accident, or --no-zookeeper if they no longer use ZooKeeper")
			}
			d, err := who.decision(cmd)
			if err != nil {
				return err
			}
			return a.retire(cmd.Context(), domain, d)
		},
	}
	who.flags(cmd)
	noZooKeeperFlag(cmd, &noZooKeeper)
	return cmd
}

func noZooKeeperFlag(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "no-zookeeper", false, "the services no longer lock in any ZooKeeper ensemble, only in Redis")
}

var errBothWays = wrongUse("--zookeeper (or IDEMCTL_ZOOKEEPER) and --no-zookeeper contradict each other")

func (a *app) retire(ctx context.Context, domain string, d driver.Decision) error {
	b, err := a.openBackends(ctx, need{ensemble: true})
	if err != nil {
		return err
	}
	defer b.close()
	if err := a.checkDead(ctx, b, domain); err != nil {
		return err
	}
	already, err := b.store.DomainRetired(ctx, domain)
	if err != nil {
		return err
	}
	if !already {
		if err := a.checkSilent(ctx, b, domain); err != nil {
			return err
		}
	}
	if err := b.store.RetireDomain(ctx, domain, d); err != nil {
		return err
	}
	pending := 0
	err = eachOpen(ctx, b.store, driver.OpenQuery{State: driver.StatePending, Limit: openPage}, func(r *driver.OpenRecord) bool {
		if r.Record.Attempt.Fence.Domain == domain {
			pending++
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("%s is retired, but its pending records could not be counted: %w", operate.OneLine(domain), err)
	}
	return a.writeRetired(retiredRow{domain, pending, already})
}

// checkDead refuses a domain that is alive.
func (a *app) checkDead(ctx context.Context, b *backends, domain string) error {
	if domain == driver.JoinedDomain {
		return fmt.Errorf("%s is the domain of joined transactions, which end with their database: it has no locks and was not retired", domain)
	}
	if b.zookeeper != nil && ofEnsemble(domain, b.zookeeper.Domain()) {
		renewed, err := a.renewDomain(ctx, b)
		if err != nil {
			return err
		}
		if !renewed {
			return fmt.Errorf("%s is the lock domain of the --zookeeper ensemble: it is alive and was not retired", operate.OneLine(domain))
		}
	}
	domains, err := a.redisDomains(ctx, b.redis)
	if err != nil {
		return err
	}
	if shard := slices.Index(domains[:], domain); b.redis != nil && shard >= 0 {
		return fmt.Errorf("%s is the lock domain of shard %02x in this Redis: it is alive and was not retired", operate.OneLine(domain), shard)
	}
	return nil
}

// renewDomain gives the ensemble another lock domain if it came back with older data. Services do
// so with their next request, which may not have come yet.
func (a *app) renewDomain(ctx context.Context, b *backends) (renewed bool, err error) {
	fences := map[string]uint64{}
	err = eachOpen(ctx, b.store, driver.OpenQuery{Limit: openPage}, func(r *driver.OpenRecord) bool {
		fence := r.Record.Attempt.Fence
		fences[fence.Domain] = max(fences[fence.Domain], fence.Token)
		return true
	})
	if err != nil {
		return false, err
	}
	seen, err := highestFence(ctx, b.store, b.zookeeper.Domain(), fences)
	if err != nil {
		return false, err
	}
	if renewed, err = b.zookeeper.Locker().RenewDomain(ctx, seen); renewed {
		fmt.Fprintf(a.stderr, "idemctl: the ensemble came back with older data, without fence %v: its lock domain is %s from now on\n", seen, b.zookeeper.Domain())
	}
	return renewed, err
}

// silentFor is how many session time-outs must have passed since the last attempt
// began in a domain, before it can be retired.
const silentFor = 10

// checkSilent refuses a domain with a recent pending attempt, by the store's clock.
func (a *app) checkSilent(ctx context.Context, b *backends, domain string) error {
	now, err := b.store.Clock(ctx)
	if err != nil {
		return err
	}
	var last time.Time
	err = eachOpen(ctx, b.store, driver.OpenQuery{State: driver.StatePending, Limit: openPage}, func(r *driver.OpenRecord) bool {
		// An unreadable record may be of this domain.
		if (r.Err != nil || r.Record.Attempt.Fence.Domain == domain) && r.Record.Started.After(last) {
			last = r.Record.Started
		}
		return true
	})
	if err != nil {
		return err
	}
	if until := last.Add(silentFor * a.sessionTimeout); !last.IsZero() && now.Before(until) {
		return fmt.Errorf("%s may be alive: an attempt under it began at %s and is pending; make sure that its processes have ended, and wait until %s (%d session time-outs of %v)",
			operate.OneLine(domain), last.UTC().Format(time.RFC3339), until.UTC().Add(time.Second).Format(time.RFC3339), silentFor, a.sessionTimeout)
	}
	return nil
}

// openPage is how many open records are read in one call.
const openPage = 1000

// eachOpen calls f with every open record of a query, oldest first, and with the
// unreadable ones, until f returns false. q.Limit is the size of a page. If a part of the store does not
// answer, f gets the records of the others, and eachOpen returns an error in the end.
func eachOpen(ctx context.Context, store driver.Store, q driver.OpenQuery, f func(*driver.OpenRecord) bool) (failed error) {
	for {
		found, err := store.ListOpen(ctx, q)
		failed = cmp.Or(failed, err)
		for i := range found.Records {
			if !f(&found.Records[i]) {
				return failed
			}
		}
		if q.After = found.Next; q.After == nil {
			return failed
		}
	}
}

func (a *app) writeRetired(r retiredRow) error {
	if a.json {
		return writeJSON(a.stdout, r)
	}
	what := "retired"
	if r.Already {
		what = "was retired already:"
	}
	_, err := fmt.Fprintf(a.stdout, "%s %s; %d pending records of it count as interrupted\n", what, operate.OneLine(r.Domain), r.Pending)
	return err
}
