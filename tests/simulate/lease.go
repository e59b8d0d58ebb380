package simulate

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/tests/simulate/simstore"
)

// leases are the leases of all processes, by lock.
type leases struct {
	w *world

	mu    sync.Mutex
	held  map[string][]*belief
	fence map[string]driver.Fence // the highest one of each lock

	excused map[*process]time.Time

	// A lock that was asked for before this may be gone without its holder knowing.
	forgotten    map[string]time.Time
	allForgotten time.Time // the same for every lock in the store
}

// belief is a lease in the eyes of its process.
type belief struct {
	p       *process
	lease   driver.Lease
	holders int // as many may hold the lock at once
	since   time.Time
	settles bool // with a settlement on its way that gives the lock back
}

// excuse is for a process whose session an operator ends. The lease clock cannot know of that,
// so its leases may be believed in until the process hears of it.
func (ls *leases) excuse(p *process) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.excused[p] = time.Now().Add(ls.w.plan.Session)
}

// forget is for locks in the store that a fail-over has lost, or for all of them, which a clock that jumped ahead has ended. Their leases
// may be believed in for their time to live. package lock/redis promises no more.
func (ls *leases) forget(ids []driver.KeyID, all bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if all {
		ls.allForgotten = time.Now()
	}
	for _, id := range ids {
		ls.forgotten[lockOf(id)] = time.Now()
	}
}

// lockOf is the name of the lock of a key.
func lockOf(id driver.KeyID) string { return "key " + id.String() }

// maybeGone reports whether the lock of a lease may be gone.
func (ls *leases) maybeGone(lock string, b *belief) bool {
	if !ls.w.plan.Combined || !strings.HasPrefix(lock, lockOf(driver.KeyID{})[:4]) {
		return false
	}
	return !b.since.After(ls.allForgotten) || !b.since.After(ls.forgotten[lock])
}

// undone reports whether a fail-over may have undone what became of the lock of a lease.
func (ls *leases) undone(id driver.KeyID, b *belief) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.maybeGone(lockOf(id), b)
}

// stands reports whether a running process believes in the lease.
func (b *belief) stands() bool {
	if !b.p.runs() {
		return false
	}
	select {
	case <-b.lease.Done():
		return false
	default:
		return b.lease.Err() == nil
	}
}

// How many may hold a lock at once.
const (
	exclusive = 1
	shared    = math.MaxInt
)

// granted takes a new lease into view. forget takes it out again, before it is released.
func (ls *leases) granted(p *process, lock string, l driver.Lease, holders int) (forget func()) {
	return ls.believed(lock, &belief{p: p, lease: l, holders: holders, since: time.Now()})
}

func (ls *leases) believed(lock string, b *belief) (forget func()) {
	p, l, holders := b.p, b.lease, b.holders
	ls.mu.Lock()
	if f, highest := l.Fence(), ls.fence[lock]; p.runs() && b.stands() {
		if highest.Token != 0 && !highest.Before(f) && holders == exclusive && !ls.w.plan.has(RestoreServers) && !ls.maybeGone(lock, b) {
			ls.w.failf("lock %s: %s got fence %v after %v", lock, p.host, f, highest)
		}
		if highest.Before(f) || highest.Token == 0 {
			ls.fence[lock] = f
		}
	}
	ls.held[lock] = append(ls.held[lock], b)
	ls.mu.Unlock()
	ls.check()
	return func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		for i, other := range ls.held[lock] {
			if other == b {
				ls.held[lock] = append(ls.held[lock][:i:i], ls.held[lock][i+1:]...)
				break
			}
		}
	}
}

// check looks for locks in which too many believe.
func (ls *leases) check() {
	if ls.w.plan.has(RestoreServers) {
		return // the servers have forgotten locks, whose holders do not know
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for lock, held := range ls.held {
		least, standing := shared, []string(nil)
		for _, b := range held {
			if b.stands() && !b.settles && !b.since.Before(ls.excused[b.p]) && !ls.maybeGone(lock, b) {
				least = min(least, b.holders)
				standing = append(standing, fmt.Sprintf("%s (%v)", b.p.host, b.lease.Fence()))
			}
		}
		if len(standing) > least {
			ls.w.failf("lock %s is believed in by %s", lock, strings.Join(standing, " and by "))
		}
	}
}

// overseen is the locker of a process, under the eyes of the judge.
type overseen struct {
	*zookeeper.Locker
	p *process
}

// TryAcquire implements driver.Locker.
func (o *overseen) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	if err := o.p.step(false); err != nil {
		return nil, err
	}
	l, err := o.Locker.TryAcquire(ctx, req)
	if err != nil {
		return nil, err
	}
	kept := l.(*zookeeper.Lease)
	forget := o.p.w.leases.granted(o.p, lockOf(req.KeyID), kept, exclusive)
	return &overseenLease{kept, o.p, req.KeyID, forget}, o.p.step(false)
}

// overseenLease is a lease of an overseen locker.
type overseenLease struct {
	*zookeeper.Lease
	p      *process
	id     driver.KeyID
	forget func()
}

// givenBack looks for an attempt that its holder leaves pending. The next holder would take it for
// interrupted, although nothing has happened to this one. A copy of a Begin may arrive after the
// store has refused that Begin. It may start an attempt of which nobody knows, and which nobody runs. A
// Begin without an answer keeps its lock for the settle time-out only.
func givenBack(p *process, id driver.KeyID, l driver.Lease) {
	rec := p.w.store.Record(id)
	if p.runs() && l.Err() == nil && rec.State == driver.StatePending && rec.Attempt.Fence == l.Fence() && p.w.begun.owed(rec.Attempt, p.settleTimeout()) && !p.w.judge.shakes(id) {
		p.w.failf("%s gave back the lock of attempt %+v, which is pending", p.host, rec.Attempt)
	}
}

var _ driver.MarkingLease = (*overseenLease)(nil)

// MarkBegun implements driver.MarkingLease.
func (l *overseenLease) MarkBegun(ctx context.Context, m driver.Marker) error {
	_ = l.p.step(false)
	defer l.p.w.stepped(l.p, false)
	return l.Lease.MarkBegun(ctx, m)
}

// Release implements driver.Lease.
func (l *overseenLease) Release(ctx context.Context) error {
	_ = l.p.step(false)
	l.forget()
	givenBack(l.p, l.id, l.Lease)
	return l.Lease.Release(ctx)
}

// ReleaseInBackground implements driver.Lease.
func (l *overseenLease) ReleaseInBackground() {
	_ = l.p.step(false)
	l.forget()
	givenBack(l.p, l.id, l.Lease)
	l.Lease.ReleaseInBackground()
}

// overseenStore is the store of a process, under the eyes of the judge.
type overseenStore struct {
	*simstore.Client
	p *process
}

// Begin implements driver.Store.
func (s overseenStore) Begin(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
	res, err := s.Client.Begin(ctx, id, req)
	if res.Begun || err != nil {
		s.p.w.begun.add(req.Nonce, err == nil)
	}
	return res, err
}

// attempts are those that an engine knows to have begun, or perhaps begun. It is safe for
// concurrent use.
type attempts struct {
	mu     sync.Mutex
	nonces map[driver.Nonce]time.Time // when the engine got no answer; zero after an answer
}

func (as *attempts) add(n driver.Nonce, answered bool) {
	as.mu.Lock()
	defer as.mu.Unlock()
	as.nonces[n] = time.Now()
	if answered {
		as.nonces[n] = time.Time{}
	}
}

// owed reports whether an engine may not give back the lock of a pending attempt. It may do so
// if it has waited this long for an answer.
func (as *attempts) owed(a driver.Attempt, wait time.Duration) bool {
	as.mu.Lock()
	defer as.mu.Unlock()
	at, known := as.nonces[a.Nonce]
	return known && (at.IsZero() || time.Since(at) < wait)
}
