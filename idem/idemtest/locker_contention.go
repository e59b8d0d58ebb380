package idemtest

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// lockerGoroutines is how many callers compete in the tests of contention.
const lockerGoroutines = 64

// lockerContentionTests are about many callers at once.
var lockerContentionTests = []lockerTest{
	{"one of many tries gets the lock", func(b *lockerBench) {
		ctx, cancel := b.bounded()
		defer cancel()
		var leases atomic.Int64
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range lockerGoroutines {
			wg.Go(func() {
				<-start
				if _, err := b.client(i).TryAcquire(ctx, request(b.id)); err == nil {
					leases.Add(1)
				}
			})
		}
		close(start)
		wg.Wait()
		if got := leases.Load(); got != 1 {
			b.Errorf("TryAcquire(%s) by %d callers at once = %d leases, want 1", b.id, lockerGoroutines, got)
		}
	}},
	{"the lock excludes everybody else and its fences follow the order of holders", func(b *lockerBench) {
		ctx, cancel := context.WithTimeout(b.ctx, 4*b.h.Timeout) // of all rounds, on a machine that may be busy
		defer cancel()
		// Only the lock under test guards it.
		var (
			count int
			last  driver.Fence
		)
		var wg sync.WaitGroup
		for i := range lockerGoroutines {
			wg.Go(func() {
				for round := range b.h.Rounds {
					lease, err := driver.Acquire(ctx, b.client(i), request(b.id))
					if err != nil {
						b.Errorf("Acquire(%s) = %v, want a lease", b.id, err)
						return
					}
					count++
					if last != (driver.Fence{}) && !last.Before(lease.Fence()) {
						b.Errorf("Fence() = %s after %s, want a greater one in the same domain", lease.Fence(), last)
					}
					last = lease.Fence()
					if round%2 == 0 {
						lease.ReleaseInBackground()
					} else if err := lease.Release(ctx); err != nil {
						b.Errorf("Release() of %s = %v, want <nil>", lease.Fence(), err)
					}
				}
			})
		}
		wg.Wait()
		if want := lockerGoroutines * b.h.Rounds; count != want && !b.Failed() {
			b.Errorf("count guarded by the lock = %d, want %d", count, want)
		}
	}},
	{"many keys at once do not disturb each other", func(b *lockerBench) {
		var wg sync.WaitGroup
		for i := range lockerGoroutines {
			id := b.id
			id[1] ^= byte(i)
			wg.Go(func() {
				for range 5 {
					lease, err := b.client(i).TryAcquire(b.ctx, request(id))
					if err != nil {
						b.Errorf("TryAcquire(%s) = %v, want a lease", id, err)
						return
					}
					if err := lease.Release(b.ctx); err != nil {
						b.Errorf("Release() of %s = %v, want <nil>", lease.Fence(), err)
					}
				}
			})
		}
		wg.Wait()
	}},
	{"a try cancelled halfway leaves nothing behind", func(b *lockerBench) {
		for range 20 {
			ctx, cancel := context.WithCancel(b.ctx)
			var wg sync.WaitGroup
			wg.Go(cancel)
			lease, err := b.a.TryAcquire(ctx, request(b.id))
			wg.Wait()
			if err == nil {
				b.wantHeld(lease)
				b.release(lease)
			}
			b.release(b.takeSoon(b.b, b.id))
		}
	}},
}

// client spreads callers over both clients.
func (b *lockerBench) client(i int) driver.Locker {
	if i%2 == 0 {
		return b.a
	}
	return b.b
}
