package leasing

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// MaxBatch is how many locks one request renews.
const MaxBatch = 256

// beat renews all leases of the heartbeat's age, from one goroutine. Most leases are released
// before they reach it. beat also ends leases when their time is over, because their timers
// may have stood still.
func (l *Locker) beat() {
	tick := time.NewTicker(TickOf(l.ttl))
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
		due = slices.DeleteFunc(due, func(le *Lease) bool { return le.over() != nil || !l.due(le.left()) })
		for _, le := range due {
			le.guard()
		}
		ctx, cancel := context.WithTimeout(l.workers.ctx, PatienceOf(l.ttl))
		var wg sync.WaitGroup
		for part := range slices.Chunk(due, MaxBatch) {
			wg.Go(func() { _ = l.renew(ctx, part) }) // the next tick repeats a failed renewal
		}
		wg.Wait()
		cancel()
	}
}

// renew renews the locks of leases in one request. It returns the error of a failed
// renewal.
func (l *Locker) renew(ctx context.Context, leases []*Lease) (failed error) {
	locks := make([]Lock, len(leases))
	for i, le := range leases {
		locks[i] = le.lock
	}
	sent := l.now()
	answers := l.service.Extend(ctx, locks)
	for i, le := range leases {
		err := answers[i]
		if err != nil && !errors.Is(err, ErrGone) {
			failed = err
			l.log.Debug(l.name+": lease was not renewed", "fence", le.fence.String(), "err", err)
			continue
		}
		le.renewal(sent, err == nil)
	}
	return failed
}
