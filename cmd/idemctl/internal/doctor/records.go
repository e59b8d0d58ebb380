package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// recordCheck checks what concerns several servers: the clocks, and the records with their locks.
type recordCheck struct {
	*report

	servers *servers.Flags
	p       *patient
}

// check checks the records, and compares the servers with each other.
func (c *recordCheck) check(ctx context.Context) {
	c.checkClocks()
	ctx, cancel := context.WithTimeout(ctx, recordChecks)
	defer cancel()
	if c.p.redis != nil {
		c.checkRedis(ctx)
	} else if c.p.database != nil && c.servers.Redis.URL == "" {
		c.checkOpen(ctx, servers.SQLStore{Store: c.p.database})
	}
}

// checkRedis checks the records in Redis, and whether they are the ones that the
// services remember.
func (c *recordCheck) checkRedis(ctx context.Context) {
	opts := []redisstore.Option{redisstore.WithPrefix(c.servers.Redis.Prefix), redisstore.WithLogger(discard), redisstore.WithReadOnly()}
	witnessed := false
	const check = "incarnations"
	switch {
	case c.p.zookeeper == nil && c.servers.ZooKeeper.Servers != "":
		c.warnf(check, "not compared: the services' witness in ZooKeeper is missing or cannot be read")
	case c.p.zookeeper == nil:
		c.warnf(check, "not compared: without ZooKeeper only running instances remember their Redis")
	default:
		witness := c.servers.Redis.Witness(c.p.zookeeper)
		data, _, err := witness.Load(ctx)
		switch {
		case err != nil:
			c.failf(check, "the witness cannot be read: %v", err)
			return
		case data == nil:
			c.warnf(check, "no service with this --zookeeper has used a Redis yet: %s is missing", c.servers.Redis.WitnessPath())
		default:
			opts, witnessed = append(opts, redisstore.WithWitness(func(string) redisstore.Witness { return witness })), true
		}
	}
	store, err := redisstore.New(ctx, c.p.redis, opts...)
	if err != nil {
		c.warnf("open-records", "not checked: %v", err)
		return
	}
	if witnessed {
		switch err := store.Ping(ctx); {
		case errors.Is(err, driver.ErrStoreLost):
			c.failf(check, `%v: services refuse new keys; restore the data, or see "store accept"`, err)
		case err != nil:
			c.failf(check, "%v", err)
		default:
			c.okf(check, "all %d shards are the ones that the services remember", redisstore.Shards)
		}
	}
	c.checkRights(ctx, store)
	c.checkOpen(ctx, store)
}

// checkRights looks whether a service can work as the user of --redis. The locks may be elsewhere, so a
// user who may take none is a warning.
func (c *recordCheck) checkRights(ctx context.Context, store *redisstore.Store) {
	const check = "redis-rights"
	if err := store.CheckRights(ctx); err != nil {
		c.failf(check, "this user can keep no records: %v", err)
		return
	}
	if c.servers.ZooKeeper.Servers != "" || c.servers.Database.URL != "" {
		c.okf(check, "this user can keep records")
		return
	}
	locks, err := redislock.New(ctx, c.p.redis, redislock.WithPrefix(c.servers.Redis.Prefix), redislock.WithLogger(discard))
	if err != nil {
		c.warnf(check, "this user can keep records, and take no locks in Redis: %v", err)
		return
	}
	locks.Abandon()
	c.okf(check, "this user can keep records, and take locks in Redis")
}

// maxOpen is how many open records doctor reads.
const maxOpen = 20_000

func (c *recordCheck) checkOpen(ctx context.Context, store servers.Store) {
	const check = "open-records"
	now, err := store.Clock(ctx)
	if err != nil {
		c.failf(check, "%v", err)
		return
	}
	seen, pending, old, unknown, newer, corrupt := 0, 0, 0, 0, 0, 0
	domains, fences := map[string]int{}, map[string]uint64{}
	err = servers.EachOpen(ctx, store, driver.OpenQuery{Limit: servers.Page}, func(o *driver.OpenRecord) bool {
		seen++
		switch {
		case errors.Is(o.Err, driver.ErrNewerRecord):
			newer++
			return seen < maxOpen
		case o.Err != nil:
			corrupt++
			return seen < maxOpen
		}
		fence := o.Record.Attempt.Fence
		domains[fence.Domain]++
		fences[fence.Domain] = max(fences[fence.Domain], fence.Token)
		switch {
		case o.Record.State == driver.StateUnknown:
			unknown++
		case now.Sub(o.Record.Started) > time.Hour:
			old++
			pending++
		default:
			pending++
		}
		return seen < maxOpen
	})
	if err != nil {
		c.failf(check, "%v", err)
		return
	}
	more := ""
	if seen == maxOpen {
		more = fmt.Sprintf(" among the oldest %d", seen)
	}
	c.gradef(old == 0 && unknown == 0, check, "%d pending, %d of them for more than an hour, and %d unknown%s", pending, old, unknown, more)
	if newer+corrupt > 0 {
		c.warnf("unreadable-records", `of a newer build: %d, corrupt: %d%s; their keys are refused, see "record list"`, newer, corrupt, more)
	}
	c.checkDomains(ctx, store, domains)
	if c.p.zookeeper != nil {
		c.checkHistory(ctx, store, fences)
	}
}

// checkHistory looks whether the ensemble lacks a fence that the records know.
func (c *recordCheck) checkHistory(ctx context.Context, store driver.Store, fences map[string]uint64) {
	const check = "zookeeper-history"
	seen, err := servers.HighestFence(ctx, store, c.p.zookeeper.Domain(), fences)
	behind := false
	if err == nil {
		behind, err = c.p.zookeeper.Locker().Behind(ctx, seen)
	}
	switch {
	case err != nil:
		c.failf(check, "%v", err)
	case behind:
		c.failf(check, `the ensemble came back with older data, without fence %v: with their next request the services give it another lock domain; see "store retire" for the old one`, seen)
	default:
		c.okf(check, "the ensemble is past every known fence of its lock domain")
	}
}

// checkDomains looks for open records of other lock domains. Our locks prove nothing
// about them.
func (c *recordCheck) checkDomains(ctx context.Context, store driver.Store, domains map[string]int) {
	const check = "record-domains"
	ours, err := c.servers.Redis.Domains(ctx, c.p.redis)
	if err != nil {
		c.failf(check, "%v", err)
		return
	}
	var foreign []string
	for _, domain := range slices.Sorted(maps.Keys(domains)) {
		if c.p.redis == nil && domain == driver.JoinedDomain || c.p.locks.Has(domain) || c.p.redis != nil && slices.Contains(ours[:], domain) || c.p.zookeeper != nil && servers.OfEnsemble(domain, c.p.zookeeper.Domain()) {
			continue
		}
		retired, err := store.DomainRetired(ctx, domain)
		if err != nil {
			c.failf(check, "%v", err)
			return
		}
		if !retired {
			foreign = append(foreign, fmt.Sprintf("%s (%d)", operate.OneLine(domain), domains[domain]))
		}
	}
	switch {
	case len(foreign) == 0:
		c.okf(check, "every open record has a known lock domain")
	case c.p.zookeeper == nil && c.p.redis == nil:
		c.warnf(check, "open records of these lock domains: %s; give --zookeeper to compare", strings.Join(foreign, ", "))
	case c.p.zookeeper == nil:
		c.warnf(check, "open records of lock domains outside this Redis: %s; give --zookeeper to compare", strings.Join(foreign, ", "))
	default:
		c.warnf(check, `open records of other lock domains: %s; their holders may be alive, see "store retire"`, strings.Join(foreign, ", "))
	}
}
