package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// clockReading is how far a server's clock is ahead of this machine's.
type clockReading struct {
	whose string
	ahead time.Duration
	give  time.Duration // the error, in either direction
}

// readClock compares a server's time, from an answer to a request of time sent.
func readClock(whose string, told, sent time.Time) clockReading {
	took := time.Since(sent)
	return clockReading{whose, told.Sub(sent.Add(took / 2)), took / 2}
}

// checkTogether checks the records, and compares the servers with each other.
func (a *app) checkTogether(ctx context.Context, r *report, p *patient) {
	checkClocks(r, p.clocks)
	ctx, cancel := context.WithTimeout(ctx, recordChecks)
	defer cancel()
	if p.redis != nil {
		a.checkRecordsInRedis(ctx, r, p)
	} else if p.database != nil && a.redis == "" {
		a.checkOpenRecords(ctx, r, p, sqlTools{p.database})
	}
}

// checkRecordsInRedis checks the records in Redis, and whether they are the ones that the
// services remember.
func (a *app) checkRecordsInRedis(ctx context.Context, r *report, p *patient) {
	opts := []redisstore.Option{redisstore.WithPrefix(a.prefix), redisstore.WithLogger(discard), redisstore.WithReadOnly()}
	witnessed := false
	const check = "incarnations"
	switch {
	case p.zookeeper == nil && a.zookeeper != "":
		r.warnf(check, "not compared: the services' witness in ZooKeeper is missing or cannot be read")
	case p.zookeeper == nil:
		r.warnf(check, "not compared: without ZooKeeper only running instances remember their Redis")
	default:
		witness := a.witnessIn(p.zookeeper)
		data, _, err := witness.Load(ctx)
		switch {
		case err != nil:
			r.failf(check, "the witness cannot be read: %v", err)
			return
		case data == nil:
			r.warnf(check, "no service with this --zookeeper has used a Redis yet: %s is missing", a.witnessPath())
		default:
			opts, witnessed = append(opts, redisstore.WithWitness(witness)), true
		}
	}
	store, err := redisstore.New(ctx, p.redis, opts...)
	if err != nil {
		r.warnf("open-records", "not checked: %v", err)
		return
	}
	if witnessed {
		switch err := store.Ping(ctx); {
		case errors.Is(err, driver.ErrStoreLost):
			r.failf(check, `%v: services refuse new keys; restore the data, or see "store accept"`, err)
		case err != nil:
			r.failf(check, "%v", err)
		default:
			r.okf(check, "all %d shards are the ones that the services remember", redisstore.Shards)
		}
	}
	a.checkOpenRecords(ctx, r, p, store)
}

// checkClocks compares the clocks with each other and with this machine's.
func checkClocks(r *report, clocks []clockReading) {
	if len(clocks) == 0 {
		return
	}
	clocks = append(clocks, clockReading{whose: "this machine"})
	first := slices.MinFunc(clocks, func(a, b clockReading) int { return int(a.ahead - b.ahead) })
	last := slices.MaxFunc(clocks, func(a, b clockReading) int { return int(a.ahead - b.ahead) })
	apart, give := last.ahead-first.ahead, first.give+last.give
	r.gradef(apart <= maxSkew+give, "clock-skew", "%d clocks are within %v, give or take %v, from %s to %s",
		len(clocks), apart.Round(time.Millisecond), give.Round(time.Millisecond), first.whose, last.whose)
}

// maxOpen is how many open records doctor reads.
const maxOpen = 20_000

func (a *app) checkOpenRecords(ctx context.Context, r *report, p *patient, store tokenStore) {
	const check = "open-records"
	now, err := store.Clock(ctx)
	if err != nil {
		r.failf(check, "%v", err)
		return
	}
	seen, pending, old, unknown, newer, corrupt := 0, 0, 0, 0, 0, 0
	domains, fences := map[string]int{}, map[string]uint64{}
	err = eachOpen(ctx, store, driver.OpenQuery{Limit: openPage}, func(o *driver.OpenRecord) bool {
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
		r.failf(check, "%v", err)
		return
	}
	more := ""
	if seen == maxOpen {
		more = fmt.Sprintf(" among the oldest %d", seen)
	}
	r.gradef(old == 0 && unknown == 0, check, "%d pending, %d of them for more than an hour, and %d unknown%s", pending, old, unknown, more)
	if newer+corrupt > 0 {
		r.warnf("unreadable-records", `of a newer build: %d, corrupt: %d%s; their keys are refused, see "record list"`, newer, corrupt, more)
	}
	a.checkDomains(ctx, r, p, store, domains)
	if p.zookeeper != nil {
		checkHistory(ctx, r, p.zookeeper, store, fences)
	}
}

// checkHistory looks whether the ensemble lacks a fence that the records know.
func checkHistory(ctx context.Context, r *report, client *zookeeper.Client, store driver.Store, fences map[string]uint64) {
	const check = "zookeeper-history"
	seen, err := highestFence(ctx, store, client.Domain(), fences)
	behind := false
	if err == nil {
		behind, err = client.Locker().Behind(ctx, seen)
	}
	switch {
	case err != nil:
		r.failf(check, "%v", err)
	case behind:
		r.failf(check, `the ensemble came back with older data, without fence %v: with their next request the services give it another lock domain; see "store retire" for the old one`, seen)
	default:
		r.okf(check, "the ensemble is past every known fence of its lock domain")
	}
}

// highestFence is the highest known fence of the locks of an ensemble, which may have several roots.
// fences has those of open records by their domain.
func highestFence(ctx context.Context, store driver.Store, domain string, fences map[string]uint64) (driver.Fence, error) {
	token, err := store.HighestFence(ctx, domain)
	for of, t := range fences {
		if ofEnsemble(of, domain) {
			token = max(token, t)
		}
	}
	return driver.Fence{Domain: domain, Token: token}, err
}

// checkDomains looks for open records of other lock domains. Our locks prove nothing
// about them.
func (a *app) checkDomains(ctx context.Context, r *report, p *patient, store driver.Store, domains map[string]int) {
	const check = "record-domains"
	ours, err := a.redisDomains(ctx, p.redis)
	if err != nil {
		r.failf(check, "%v", err)
		return
	}
	var foreign []string
	for _, domain := range slices.Sorted(maps.Keys(domains)) {
		if p.redis == nil && domain == driver.JoinedDomain || p.redis != nil && slices.Contains(ours[:], domain) || p.zookeeper != nil && ofEnsemble(domain, p.zookeeper.Domain()) {
			continue
		}
		retired, err := store.DomainRetired(ctx, domain)
		if err != nil {
			r.failf(check, "%v", err)
			return
		}
		if !retired {
			foreign = append(foreign, fmt.Sprintf("%s (%d)", operate.OneLine(domain), domains[domain]))
		}
	}
	switch {
	case len(foreign) == 0:
		r.okf(check, "every open record has a known lock domain")
	case p.zookeeper == nil && p.redis == nil:
		r.warnf(check, "open records of these lock domains: %s; give --zookeeper to compare", strings.Join(foreign, ", "))
	case p.zookeeper == nil:
		r.warnf(check, "open records of lock domains outside this Redis: %s; give --zookeeper to compare", strings.Join(foreign, ", "))
	default:
		r.warnf(check, `open records of other lock domains: %s; their holders may be alive, see "store retire"`, strings.Join(foreign, ", "))
	}
}
