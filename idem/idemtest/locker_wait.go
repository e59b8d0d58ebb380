package idemtest

import (
	"context"
	"errors"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// lockerWaitTests are about Wait and Acquire.
var lockerWaitTests = []lockerTest{
	{"waiting for a free lock returns at once", func(b *lockerBench) {
		b.wantWoken(b.wait(b.ctx, b.a, 1), 1, nil)
		b.release(b.take(b.a, b.id))
		b.wantWoken(b.wait(b.ctx, b.a, 1), 1, nil)
		b.wantWoken(b.wait(b.ctx, b.b, 1), 1, nil)
	}},
	{"a waiter of each client hears of the release", func(b *lockerBench) {
		for _, holder := range []driver.Locker{b.a, b.b} {
			lease := b.takeSoon(holder, b.id)
			wokenA, wokenB := b.wait(b.ctx, b.a, 1), b.wait(b.ctx, b.b, 1)
			b.release(lease)
			b.wantWoken(wokenA, 1, nil)
			b.wantWoken(wokenB, 1, nil)
		}
	}},
	{"many waiters all hear of a release in the background", func(b *lockerBench) {
		const each = 32
		lease := b.take(b.a, b.id)
		wokenA, wokenB := b.wait(b.ctx, b.a, each), b.wait(b.ctx, b.b, each)
		lease.ReleaseInBackground()
		b.wantWoken(wokenA, each, nil)
		b.wantWoken(wokenB, each, nil)
	}},
	{"a waiter whose context ends is told so", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		for _, l := range []driver.Locker{b.a, b.b} {
			ended, cancel := context.WithCancel(b.ctx)
			cancel()
			b.wantWoken(b.wait(ended, l, 1), 1, context.Canceled)

			ctx, cancel := context.WithCancel(b.ctx)
			woken := b.wait(ctx, l, 8)
			cancel()
			b.wantWoken(woken, 8, context.Canceled)
		}
		b.wantHeld(lease)
	}},
	{"a waiter is not woken while the lock is held", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		ctx, cancel := context.WithTimeout(b.ctx, b.h.Timeout/300)
		defer cancel()
		woken := b.wait(ctx, b.b, 4)
		b.release(b.take(b.a, b.other)) // the release of another key does not wake them
		b.wantWoken(woken, 4, context.DeadlineExceeded)
		b.wantHeld(lease)
	}},
	{"waiters who left do not disturb those who stay", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		ctx, cancel := context.WithCancel(b.ctx)
		left, stayed := b.wait(ctx, b.b, 8), b.wait(b.ctx, b.b, 8)
		cancel()
		b.wantWoken(left, 8, context.Canceled)
		b.release(lease)
		b.wantWoken(stayed, 8, nil)
	}},
	{"acquire takes a free lock", func(b *lockerBench) {
		b.wantHeld(b.takeSoon(b.a, b.id))
	}},
	{"acquire waits for the release", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		ctx, cancel := b.bounded()
		defer cancel()
		next := make(chan driver.Lease, 1)
		go func() {
			defer close(next)
			if got, err := driver.Acquire(ctx, b.b, request(b.id)); err == nil {
				next <- got
			} else {
				b.Errorf("Acquire(%s) = %v, want a lease", b.id, err)
			}
		}()
		select {
		case got := <-next:
			b.Fatalf("Acquire(%s) = %v while %s is held, want it to wait", b.id, got, lease.Fence())
		default:
		}
		b.release(lease)
		got, ok := <-next
		if !ok {
			return
		}
		if !lease.Fence().Before(got.Fence()) {
			b.Errorf("Fence() = %s after %s, want a greater one", got.Fence(), lease.Fence())
		}
		b.wantHeld(got)
	}},
	{"acquire gives up when its context ends", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		ctx, cancel := context.WithCancel(b.ctx)
		failed := make(chan error, 1)
		go func() {
			_, err := driver.Acquire(ctx, b.b, request(b.id))
			failed <- err
		}()
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			b.Errorf("Acquire(%s) = %v, want %v", b.id, err, context.Canceled)
		}
		b.release(lease)
		b.release(b.takeSoon(b.a, b.id)) // nothing was left behind
	}},
}

// wait lets n goroutines wait for the lock, and returns the answers of Wait. Some may only
// start to wait after wait has returned.
func (b *lockerBench) wait(ctx context.Context, l driver.Locker, n int) <-chan error {
	woken := make(chan error, n)
	started := make(chan struct{})
	for range n {
		go func() {
			started <- struct{}{}
			woken <- l.Wait(ctx, b.id)
		}()
	}
	for range n {
		<-started
	}
	return woken
}

// wantWoken requires n answers equal to want.
func (b *lockerBench) wantWoken(woken <-chan error, n int, want error) {
	b.Helper()
	ctx, cancel := b.bounded()
	defer cancel()
	for i := range n {
		select {
		case err := <-woken:
			if !errors.Is(err, want) {
				b.Errorf("Wait(%s) = %v, want %v", b.id, err, want)
			}
		case <-ctx.Done():
			b.Fatalf("Wait(%s): %d of %d waiters not woken after %v", b.id, n-i, n, b.h.Timeout)
		}
	}
}
