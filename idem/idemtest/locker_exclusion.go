package idemtest

import (
	"context"
	"errors"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// lockerExclusionTests are about the owner of the lock and its fence.
var lockerExclusionTests = []lockerTest{
	{"the service answers a ping", func(b *lockerBench) {
		ctx, cancel := b.bounded()
		defer cancel()
		for _, l := range []driver.Locker{b.a, b.b} {
			if err := l.Ping(ctx); err != nil {
				b.Errorf("Ping() = %v, want <nil>", err)
			}
		}
		if b.a.Visibility() != b.b.Visibility() {
			b.Errorf("Visibility() = %v and %v for two clients of one service", b.a.Visibility(), b.b.Visibility())
		}
	}},
	{"a held lock is refused to another client and to its own", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		b.wantLocked(b.b, request(b.id))
		b.wantLocked(b.a, request(b.id))
		b.wantHeld(lease)
	}},
	{"a released lock is free for both clients", func(b *lockerBench) {
		for _, l := range []driver.Locker{b.a, b.b, b.b, b.a} {
			b.release(b.take(l, b.id))
		}
	}},
	{"different keys do not exclude each other", func(b *lockerBench) {
		first := b.take(b.a, b.id)
		second := b.take(b.a, b.other)
		b.release(first)
		b.wantLocked(b.b, request(b.other))
		b.wantHeld(second)
		b.release(b.take(b.b, b.id))
	}},
	{"the same nonce does not make it reentrant", func(b *lockerBench) {
		ctx, cancel := b.bounded()
		defer cancel()
		req := request(b.id)
		lease, err := b.a.TryAcquire(ctx, req)
		if err != nil {
			b.Fatalf("TryAcquire(%s) = %v, want a lease", b.id, err)
		}
		b.wantLocked(b.a, req)
		b.wantLocked(b.b, req)
		b.wantHeld(lease)
	}},
	{"a refused request can be repeated", func(b *lockerBench) {
		ctx, cancel := b.bounded()
		defer cancel()
		lease := b.take(b.a, b.id)
		req := request(b.id)
		b.wantLocked(b.b, req)
		b.wantLocked(b.b, req)
		b.release(lease)
		if _, err := b.b.TryAcquire(ctx, req); err != nil {
			b.Errorf("TryAcquire(%s) with a nonce that was refused before = %v, want a lease", b.id, err)
		}
	}},
	{"the fence grows from holder to holder in one domain", func(b *lockerBench) {
		var last driver.Fence
		for i, l := range []driver.Locker{b.a, b.b, b.a, b.a, b.b, b.b} {
			lease := b.take(l, b.id)
			fence := lease.Fence()
			if fence.Domain == "" || fence.Token == 0 {
				b.Errorf("Fence() = %s, want a domain and a token", fence)
			}
			if i > 0 && !last.Before(fence) {
				b.Errorf("Fence() = %s after %s, want a greater one in the same domain", fence, last)
			}
			b.release(lease)
			if got := lease.Fence(); got != fence {
				b.Errorf("Fence() after Release() = %s, want %s as before", got, fence)
			}
			last = fence
		}
	}},
	{"the fence grows when the key rested meanwhile", func(b *lockerBench) {
		lease := b.take(b.a, b.id)
		b.release(lease)
		for range 5 {
			b.release(b.take(b.a, b.other))
		}
		next := b.take(b.b, b.id)
		if !lease.Fence().Before(next.Fence()) {
			b.Errorf("Fence() = %s after %s, want a greater one in the same domain", next.Fence(), lease.Fence())
		}
	}},
	{"a context that has ended takes no lock", func(b *lockerBench) {
		ended, cancel := context.WithCancel(b.ctx)
		cancel()
		lease, err := b.a.TryAcquire(ended, request(b.id))
		if err == nil || errors.Is(err, driver.ErrLocked) || lease != nil {
			b.Errorf("TryAcquire(%s) with an ended context = %v, %v, want no lease and what stopped it", b.id, lease, err)
		}
		// The Locker undoes a possible effect in the background.
		b.release(b.takeSoon(b.b, b.id))
	}},
	{"a lease outlives the context it was taken with", func(b *lockerBench) {
		ctx, cancel := context.WithCancel(b.ctx)
		lease, err := b.a.TryAcquire(ctx, request(b.id))
		if err != nil {
			b.Fatalf("TryAcquire(%s) = %v, want a lease", b.id, err)
		}
		cancel()
		b.wantHeld(lease)
		b.wantLocked(b.b, request(b.id))
		b.wantHeld(lease)
		b.release(lease)
	}},
}
