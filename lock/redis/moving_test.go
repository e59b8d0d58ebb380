package redislock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// While a cluster moves the slot of a shard, the locks in it stay with their holders, who can renew them and give
// them back. A lock that is asked for is refused at most, and the fences go on growing after the move.
func TestLocksOfASlotThatMoves(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, testserver.WithRedisArgs("--cluster-require-full-coverage", "no"))
	defer wantRenewedBesideAServerThatHangs(t, c)
	prefix := freshPrefix(t)
	l, other := open(t, connect(t, 2, c.Addrs()...), prefix), open(t, connect(t, 2, c.Addrs()...), prefix)
	inShard := func() driver.LockRequest {
		req := request()
		req.KeyID[0] = 7
		return req
	}
	var reqs []driver.LockRequest
	held := make(map[driver.LockRequest]driver.Lease)
	for range 24 { // the move takes three steps
		req := inShard()
		reqs = append(reqs, req)
		held[req] = take(t, l, req)
	}
	steps, refused, highest := 0, 0, held[reqs[len(reqs)-1]].Fence()
	mayBeRefused := func(lease driver.Lease, err error) {
		switch {
		case err == nil && lease.Fence().Before(highest):
			t.Errorf("TryAcquire() = %v in step %d, want a fence above %v", lease.Fence(), steps, highest)
		case err != nil && !errors.Is(err, driver.ErrUnavailable):
			t.Errorf("TryAcquire() of a free lock = %v in step %d, want it or %v", err, steps, driver.ErrUnavailable)
		case err != nil:
			refused++
		default:
			release(t, lease)
		}
	}
	move := func() {
		steps++
		for req, lease := range held {
			if _, err := lease.Check(t.Context()); err != nil {
				t.Errorf("Check() of a held lock = %v in step %d", err, steps)
			}
			if lease, err := other.TryAcquire(t.Context(), again(req)); err == nil {
				t.Errorf("TryAcquire() of a held lock = %v in step %d", lease.Fence(), steps)
			}
		}
		given := reqs[steps]
		release(t, held[given])
		delete(held, given)
		mayBeRefused(other.TryAcquire(t.Context(), again(given)))
		mayBeRefused(other.TryAcquire(t.Context(), inShard()))
	}
	if err := c.MoveSlot(l.keeper.keys.Fences(7), 0, move); err != nil {
		t.Fatalf("MoveSlot() = %v", err)
	}
	if refused == 0 || steps < 3 {
		t.Errorf("%d locks were refused in %d steps, so the test shows nothing", refused, steps)
	}
	for req, lease := range held {
		for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // a server may have been too slow a moment ago
			_, err := other.TryAcquire(t.Context(), again(req))
			if errors.Is(err, driver.ErrLocked) {
				break
			}
			if err == nil || time.Now().After(end) {
				t.Fatalf("TryAcquire() of a held lock after the move = %v, want %v", err, driver.ErrLocked)
			}
		}
		release(t, lease)
	}
	if lease := takeSoon(t, other, again(reqs[0])); !highest.Before(lease.Fence()) {
		t.Errorf("the fence after the move is %v, want one above %v", lease.Fence(), highest)
	}
}

// wantRenewedBesideAServerThatHangs renews two locks of different servers together. One server does not answer, and
// the lock of the other one is renewed.
func wantRenewedBesideAServerThatHangs(t *testing.T, c *testserver.RedisCluster) {
	t.Helper()
	l := open(t, connect(t, 2, c.Addrs()...), freshPrefix(t), WithTTL(longTTL))
	at := func(node *testserver.Redis) leasing.Lock {
		for req := request(); ; req = request() {
			lock := leasing.Lock{ID: req.KeyID, Owner: req.Nonce}
			if owner, err := c.NodeFor(l.keeper.keys.Lock(lock.ID)); err != nil {
				t.Fatal(err)
			} else if owner == node && lock.ID[0] != 7 { // that slot has moved
				if _, taken, err := l.keeper.Acquire(t.Context(), lock); !taken {
					t.Fatalf("Acquire() = %t, %v, want the lock", taken, err)
				}
				return lock
			}
		}
	}
	works, hangs := at(c.Nodes()[0]), at(c.Nodes()[1])
	c.Nodes()[1].Pause()
	defer c.Nodes()[1].Resume()
	for end := time.Now().Add(patience); ; { // a machine under load may be too slow for one renewal
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		answers := l.keeper.Extend(ctx, []leasing.Lock{works, hangs})
		cancel()
		if err := answers[1]; err == nil || errors.Is(err, leasing.ErrGone) {
			t.Errorf("Extend() at a server that hangs = %v, want no answer", err)
		}
		if answers[0] == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the lock of the server that answers was not renewed: %v", answers)
		}
	}
}
