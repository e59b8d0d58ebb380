package redislock

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// A request takes or renews a lock. Redis lets the lock expire one time to live after it
// received the request, by its own clock. A lease is trusted for nine tenths of the time to
// live. The trust counts from before the request was sent. The lease clock measures it, and
// goes on while the machine is suspended.
//
//	sent ──── trusted: 9/10 ────▶ Done        ▼ another owner at the earliest
//	   └─ received ──── time to live: 10/10 ─┘
//
// Half of the tenth in between allows for clocks of different speeds. The other half allows
// for a late timer and for the holder's reaction.

// trustOf is how long a lease is trusted after its last renewal was sent.
func trustOf(ttl time.Duration) time.Duration { return ttl - ttl/10 }

// heartbeatOf is the age at which a lease is renewed. Two renewals may fail before the
// lease is lost.
func heartbeatOf(ttl time.Duration) time.Duration { return ttl / 3 }

// tickOf is the pause between two looks for leases to renew.
func tickOf(ttl time.Duration) time.Duration { return ttl / 20 }

// terms are the time to live of locks, and the lease clock.
type terms struct {
	ttl time.Duration
	now leaseclock.Source
}

// trustSince is how long a lease is still trusted. sent is when its last renewal was sent.
func (t *terms) trustSince(sent leaseclock.Instant) time.Duration {
	return sent.Add(trustOf(t.ttl)).Sub(t.now())
}

// due reports whether a lease has the age of the heartbeat. left is how long it is still
// trusted.
func (t *terms) due(left time.Duration) bool { return left <= trustOf(t.ttl)-heartbeatOf(t.ttl) }

// patienceOf bounds a request in the background, such as a renewal or a release.
func patienceOf(ttl time.Duration) time.Duration { return min(ttl/5, 2*time.Second) }

// batch is how many locks one pipeline renews.
const batch = 256

// beat renews all leases of the heartbeat's age, from one goroutine. Most leases are released
// before they reach it. beat also ends leases when their time is over, because their timers
// may have stood still.
func (l *Locker) beat() {
	tick := time.NewTicker(tickOf(l.ttl))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.workers.ctx.Done():
			return
		}
		l.mu.Lock()
		due := slices.Collect(maps.Keys(l.held))
		l.mu.Unlock()
		due = slices.DeleteFunc(due, func(le *lease) bool { return le.over() != nil || !l.due(le.left()) })
		for _, le := range due {
			le.guard()
		}
		ctx, cancel := context.WithTimeout(l.workers.ctx, patienceOf(l.ttl))
		var wg sync.WaitGroup
		for part := range slices.Chunk(due, batch) {
			wg.Go(func() { _ = l.renew(ctx, part) }) // the next tick repeats a failed renewal
		}
		wg.Wait()
		cancel()
	}
}

// renew renews the locks of leases in one pipeline. It returns the error of a failed
// renewal.
func (l *Locker) renew(ctx context.Context, leases []*lease) (failed error) {
	sent := l.now()
	answers := l.keeper.extend(ctx, leases)
	for i, le := range leases {
		n, err := answers[i].Int()
		if err != nil {
			failed = err
			l.log.Debug("lock/redis: lease was not renewed", "fence", le.fence.String(), "err", err)
			continue
		}
		le.renewal(sent, n == 1)
	}
	return failed
}
