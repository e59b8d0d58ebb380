package redislock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// batch is how many locks one pipeline renews.
const batch = 256

// beat renews the leases that live long enough to need it, all of them from one
// goroutine. Most are given back before that. It ends those that came too late to it,
// since their timers may have stood still.
func (l *Locker) beat() {
	tick := time.NewTicker(tickOf(l.ttl))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.ctx.Done():
			return
		}
		due := l.due(l.now())
		due = slices.DeleteFunc(due, func(le *lease) bool { return le.over() != nil })
		l.renew(due)
	}
}

// due returns the leases that have to be renewed.
func (l *Locker) due(now leaseclock.Instant) []*lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	var due []*lease
	for le := range l.held {
		if le.due(now) {
			due = append(due, le)
		}
	}
	return due
}

// renew sends the batches side by side and waits for all of them. A failure is
// left to the next tick, and to the lease's own timer.
func (l *Locker) renew(leases []*lease) {
	if len(leases) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, patienceOf(l.ttl))
	defer cancel()
	var wg sync.WaitGroup
	for part := range slices.Chunk(leases, batch) {
		wg.Go(func() {
			sent, asked := l.now(), time.Now()
			for i, cmd := range l.extendAll(ctx, part) {
				le := part[i]
				n, err := cmd.Int()
				l.health.note(shardOf(le.id), asked, err)
				switch {
				case err != nil:
					l.log.Debug("lock/redis: lease was not renewed", "fence", le.fence.String(), "err", err)
				case n == 1:
					le.confirm(sent)
				default:
					le.lose("its key is gone, or another owner's")
				}
			}
		})
	}
	wg.Wait()
}
