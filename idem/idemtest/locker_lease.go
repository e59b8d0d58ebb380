package idemtest

import (
	"context"
	"errors"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// lockerLeaseTests are about the life of a lease until its release.
var lockerLeaseTests = []lockerTest{
	{"a released lease is over without an error", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		done := lease.Done()
		b.wantHeld(lease)
		b.release(lease)
		b.wantOver(lease)
		if !isClosed(done) {
			b.Error("Done() taken before Release() is open after it")
		}
		if err := lease.Err(); err != nil {
			b.Errorf("Err() after Release() = %v, want <nil>", err)
		}
	}},
	{"an unwatched lease is done after release", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		b.release(lease)
		b.wantOver(lease)
	}},
	{"releasing twice does nothing", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		b.release(lease)
		b.release(lease)
		lease.ReleaseInBackground()
		b.wantOver(lease)
		b.release(b.takeSoon(b.b, b.id))
	}},
	{"a stale release leaves another client's lock", func(b *lockerBench) { staleRelease(b, b.b) }},
	{"a stale release leaves the same client's next lock", func(b *lockerBench) { staleRelease(b, b.a) }},
	{"a release in the background frees the lock", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		lease.ReleaseInBackground()
		b.await("Done() after ReleaseInBackground()", lease.Done())
		if err := lease.Err(); err != nil {
			b.Errorf("Err() after ReleaseInBackground() = %v, want <nil>", err)
		}
		next := b.takeSoon(b.b, b.id)
		lease.ReleaseInBackground()
		b.release(lease)
		b.wantLocked(b.a, request(b.id))
		b.wantHeld(next)
	}},
	{"a release whose context has ended frees the lock in the end", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		ended, cancel := context.WithCancel(b.ctx)
		cancel()
		_ = lease.Release(ended) // may fail, and then goes on in the background
		b.release(b.takeSoon(b.b, b.id))
	}},
	{"many releases at once release once", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		ctx, cancel := b.bounded()
		defer cancel()
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				if i%2 == 0 {
					lease.ReleaseInBackground()
				} else if err := lease.Release(ctx); err != nil {
					b.Errorf("Release() among others = %v, want <nil>", err)
				}
			})
		}
		next := b.takeSoon(b.b, b.id)
		wg.Wait()
		b.wantLocked(b.a, request(b.id))
		b.wantHeld(next)
	}},
	{"a check confirms again and again", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		for range 20 {
			b.wantHeld(lease)
		}
	}},
}

// staleRelease releases a lease again while next holds the lock.
func staleRelease(b *lockerBench, next driver.Locker) {
	b.Helper()
	old := b.take(b.a, b.id)
	b.release(old)
	lease := b.take(next, b.id)
	b.release(old)
	old.ReleaseInBackground()
	b.release(b.take(b.a, b.other)) // the background has had its turn
	b.wantLocked(b.a, request(b.id))
	b.wantLocked(b.b, request(b.id))
	b.wantHeld(lease)
	b.wantOver(old)
}

// lockerLossTests are about the loss of a lease.
var lockerLossTests = []lockerTest{
	{"a lost lease says so and frees the lock", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		done := lease.Done()
		b.h.Lose(b.T, b.a, b.id, lease)
		b.await("Done() after the loss", done)
		wantLost(b, lease)
		next := b.takeSoon(b.b, b.id)
		if !lease.Fence().Before(next.Fence()) {
			b.Errorf("Fence() = %s after the loss of %s, want a greater one", next.Fence(), lease.Fence())
		}
	}},
	{"releasing a lost lease leaves the next owner's lock", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		b.h.Lose(b.T, b.a, b.id, lease)
		b.await("Done() after the loss", lease.Done())
		next := b.takeSoon(b.b, b.id)
		b.release(lease)
		lease.ReleaseInBackground()
		b.release(b.take(b.b, b.other))
		b.wantLocked(b.b, request(b.id))
		b.wantHeld(next)
		wantLost(b, lease)
	}},
	{"a waiter hears of a lost lease", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		woken := b.wait(b.ctx, b.b, 1)
		b.h.Lose(b.T, b.a, b.id, lease)
		b.wantWoken(woken, 1, nil)
	}},
}

// wantLost asks a lost lease. Its Done is closed.
func wantLost(b *lockerBench, lease driver.Lease) {
	b.Helper()
	b.wantOver(lease)
	if err := lease.Err(); !errors.Is(err, driver.ErrLeaseLost) {
		b.Errorf("Err() after the loss = %v, want %v", err, driver.ErrLeaseLost)
	}
}
