package redislock

import (
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
)

// A lease by Retake is trusted from then on, so the lock lives from then on, whoever had taken it.
func TestRetakeRenewsTheLock(t *testing.T) {
	t.Parallel()
	client, req := connect(t, 2, sharedAddr(t)), request()
	l := open(t, client, freshPrefix(t), WithTTL(longTTL))
	o, err := l.Offer(t.Context(), req)
	if err != nil {
		t.Fatalf("Offer() = %v", err)
	}
	fence, taken, err := l.keeper.Acquire(t.Context(), o.(offer).of.Lock()) // as a store does
	if err != nil || !taken {
		t.Fatalf("the store takes the lock: %t, %v", taken, err)
	}
	if err := client.PExpire(t.Context(), l.keeper.keys.Lock(req.KeyID), time.Minute).Err(); err != nil { // as if it was some time ago
		t.Fatal(err)
	}
	lease, err := o.Retake(t.Context())
	if err != nil || lease.Fence() != fence {
		t.Fatalf("Retake() = %v, %v, want fence %v", lease, err, fence)
	}
	if left, err := l.keeper.Remaining(t.Context(), req.KeyID); err != nil || left <= leasing.TrustOf(longTTL) {
		t.Errorf("the lock lives for %v, %v, and its lease is trusted for %v", left, err, leasing.TrustOf(longTTL))
	}
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
