package redislock

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Redis lets a lock expire one time to live after it received the request that took or
// renewed the lock, by its own clock. A lease is trusted for nine tenths of that. The trust
// counts from before the request was sent, on the lease clock, which goes on while the
// machine is suspended:
//
//	sent ──── trusted: 9/10 ────▶ Done        ▼ another owner at the earliest
//	   └─ received ──── time to live: 10/10 ─┘
//
// Half of the tenth in between allows for clocks that run at different speeds. The other
// half allows for a late timer and for the holder's reaction.

// trustOf is how long a lease is trusted after its last renewal was sent.
func trustOf(ttl time.Duration) time.Duration { return ttl - ttl/10 }

// heartbeatOf is the age at which a lease is renewed. Two renewals may fail before the
// lease is lost.
func heartbeatOf(ttl time.Duration) time.Duration { return ttl / 3 }

// tickOf is the pause between two looks for leases of that age.
func tickOf(ttl time.Duration) time.Duration { return ttl / 20 }

// patienceOf bounds a request in the background: a renewal or a release.
func patienceOf(ttl time.Duration) time.Duration { return min(ttl/5, 2*time.Second) }

// expiryOf is the time after which a lock has surely expired, counted from its owner's
// last request. It does not cover requests that are still on their way.
func expiryOf(ttl time.Duration) time.Duration { return ttl + ttl/4 }

// batch is how many locks one pipeline renews.
const batch = 256

// beat renews all leases that are old enough, from one goroutine. Most leases are released
// before that age. It also ends leases that are over, because their timers may have stood
// still.
func (l *Locker) beat() {
	tick := time.NewTicker(tickOf(l.ttl))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.ctx.Done():
			return
		}
		var due []*lease
		now := l.now()
		l.mu.Lock()
		for le := range l.held {
			if le.due(now) {
				due = append(due, le)
			}
		}
		l.mu.Unlock()
		renew(l, slices.DeleteFunc(due, func(le *lease) bool { return le.over() != nil }))
	}
}

// renew sends the batches concurrently and waits for all of them. The next tick repeats a
// failed renewal.
func renew(l *Locker, leases []*lease) {
	ctx, cancel := context.WithTimeout(l.ctx, patienceOf(l.ttl))
	defer cancel()
	var wg sync.WaitGroup
	for part := range slices.Chunk(leases, batch) {
		wg.Go(func() {
			sent := l.now()
			l.keeper.extend(ctx, part, func(le *lease, ours bool, err error) {
				if err != nil {
					l.log.Debug("lock/redis: lease was not renewed", "fence", le.fence.String(), "err", err)
					return
				}
				le.renewal(sent, ours)
			})
		})
	}
	wg.Wait()
}
