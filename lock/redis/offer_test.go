package redislock

import (
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// offered is an offer whose lock was taken in Redis, as a store takes it.
func offered(t *testing.T, l *Locker, req driver.LockRequest) (driver.LockOffer, driver.Fence) {
	t.Helper()
	o, err := l.Offer(t.Context(), req)
	if err != nil {
		t.Fatalf("Offer() = %v", err)
	}
	fence, taken, err := l.keeper.acquire(t.Context(), req.KeyID, o.Lock())
	if err != nil || !taken {
		t.Fatalf("the store takes the lock: %t, %v", taken, err)
	}
	return o, fence
}

// A lease by Retake is trusted from then on, so the lock lives from then on, whoever had taken it.
func TestRetakeRenewsTheLock(t *testing.T) {
	t.Parallel()
	client, req := connect(t, 2, sharedAddr(t)), request()
	l := open(t, client, freshPrefix(t), WithTTL(longTTL))
	o, fence := offered(t, l, req)
	if err := client.PExpire(t.Context(), l.keeper.keys.Lock(req.KeyID), time.Minute).Err(); err != nil { // as if it was some time ago
		t.Fatal(err)
	}
	lease, err := o.Retake(t.Context())
	if err != nil || lease.Fence() != fence {
		t.Fatalf("Retake() = %v, %v, want fence %v", lease, err, fence)
	}
	if left, err := l.keeper.remaining(t.Context(), req.KeyID); err != nil || left <= trustOf(longTTL) {
		t.Errorf("the lock lives for %v, %v, and its lease is trusted for %v", left, err, trustOf(longTTL))
	}
	release(t, lease)
}

// The machine is suspended while a store takes the lock. The lease comes too late, and nothing but Retake touches the lock.
func TestSuspendedWhileAStoreTakesALock(t *testing.T) {
	t.Parallel()
	clock, req := leaseclock.NewManual(), request()
	l := open(t, connect(t, 2, sharedAddr(t)), freshPrefix(t), WithTTL(longTTL), withClock(clock.Now))
	o, fence := offered(t, l, req)
	clock.Advance(trustOf(longTTL))
	if lease, err := o.Taken(fence); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Taken() = %v, %v, want %v", lease, err, driver.ErrUnavailable)
	}
	select {
	case <-l.background.Idle():
	default:
		t.Error("the lock is given back in the background, under the lease of Retake")
	}
	lease, err := o.Retake(t.Context())
	if err != nil || lease.Fence() != fence || lease.Err() != nil {
		t.Fatalf("Retake() = %v, %v, want a lease with fence %v", lease, err, fence)
	}
	wantLocked(t, l, again(req))
	release(t, lease)
}

// An offer that ends tells whether Redis answers.
func TestOffersThatEnd(t *testing.T) {
	t.Parallel()
	l, req := open(t, connect(t, 2, sharedAddr(t)), freshPrefix(t)), request()
	o, err := l.Offer(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	o.NotTaken(errors.Join(driver.ErrUnavailable, goredis.ErrPoolTimeout))
	if _, err := l.Offer(t.Context(), req); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Offer() = %v right after no answer, want %v", err, driver.ErrUnavailable)
	}
	o.NotTaken(nil)
	if _, err := l.Offer(t.Context(), req); err != nil {
		t.Errorf("Offer() = %v after an answer, want <nil>", err)
	}
}
