package redislock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Each script is applied, its reply is lost, and the client sends it again by
// itself. The outcome has to be as if nothing had happened.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	proxy := testserver.StartRedisProxy(t, r.Addr())
	l, other := open(t, connect(t, 2, proxy.Addr())), open(t, connect(t, 2, r.Addr()))
	losing := func(t *testing.T, id driver.KeyID, call func()) {
		t.Helper()
		dropped := proxy.DropNextReply(testserver.Contains(id.String()))
		call()
		select {
		case <-dropped:
		default:
			t.Fatal("no reply was lost")
		}
	}
	for range 2 { // the second time the server knows the scripts
		t.Run("acquire", func(t *testing.T) {
			req := request()
			var lease driver.Lease
			losing(t, req.KeyID, func() { lease = take(t, l, req) })
			if domain, last := fencesOf(t, other, req.KeyID); lease.Fence() != (driver.Fence{Domain: domain, Token: last}) {
				t.Errorf("Fence() = %s, want %s/%d, given once", lease.Fence(), domain, last)
			}
			wantLocked(t, other, again(req))
			if left, err := lease.Check(t.Context()); err != nil || left <= 0 {
				t.Errorf("Check() = %v, %v, want time left", left, err)
			}
			release(t, lease)
			release(t, take(t, other, again(req)))
		})
		t.Run("check", func(t *testing.T) {
			req := request()
			lease := take(t, l, req)
			losing(t, req.KeyID, func() {
				if left, err := lease.Check(t.Context()); err != nil || left <= 0 {
					t.Errorf("Check() = %v, %v, want time left", left, err)
				}
			})
			release(t, lease)
		})
		t.Run("release", func(t *testing.T) {
			req := request()
			lease := take(t, l, req)
			losing(t, req.KeyID, func() { release(t, lease) })
			release(t, take(t, other, again(req)))
		})
		t.Run("wait", func(t *testing.T) {
			req := request()
			losing(t, req.KeyID, func() {
				if err := l.Wait(t.Context(), req.KeyID); err != nil {
					t.Errorf("Wait() = %v, want <nil>", err)
				}
			})
		})
	}
}

// The same where the client does not send again: what was taken is undone, what
// was released stays so.
func TestLostRepliesThatAreFinal(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	proxy := testserver.StartRedisProxy(t, r.Addr())
	l, other := open(t, connect(t, 1, proxy.Addr())), open(t, connect(t, 2, r.Addr()))
	warm := take(t, l, request())
	release(t, warm)

	req := request()
	proxy.DropNextReply(testserver.Contains(req.KeyID.String()))
	if lease, err := l.TryAcquire(t.Context(), req); !errors.Is(err, driver.ErrUnavailable) {
		t.Fatalf("TryAcquire() without a reply = %v, %v, want %v", lease, err, driver.ErrUnavailable)
	}
	release(t, takeSoon(t, other, again(req)))

	req = request()
	lease := take(t, other, req)
	lost := request()
	proxied := takeEventually(t, l, lost) // it is known to answer again
	dropped := proxy.DropNextReply(testserver.Contains(lost.KeyID.String()))
	if left, err := proxied.Check(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Check() without a reply = %v, %v, want %v", left, err, driver.ErrUnavailable)
	}
	await(t, "lost reply", dropped)
	if err := proxied.Err(); err != nil {
		t.Errorf("Err() = %v, want <nil>: the lease is trusted for longer", err)
	}
	dropped = proxy.DropNextReply(testserver.Contains(lost.KeyID.String()))
	release(t, proxied) // goes on until it is acknowledged
	await(t, "lost reply", dropped)
	release(t, take(t, other, again(lost)))
	release(t, lease)
}

// takeEventually takes a free lock from a locker that may refuse to ask for a
// moment.
func takeEventually(t *testing.T, l *Locker, req driver.LockRequest) driver.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		lease, err := l.TryAcquire(ctx, req)
		if err == nil {
			return lease
		}
		if !errors.Is(err, leasing.ErrNoAnswer) {
			t.Fatalf("TryAcquire() = %v, want a lease", err)
		}
	}
}

// A request that was given up arrives after it was undone. It is undone again.
func TestAcquireThatArrivesLate(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	proxy := testserver.StartRedisProxy(t, r.Addr())
	l, other := open(t, connect(t, 1, proxy.Addr())), open(t, connect(t, 2, r.Addr()))
	release(t, take(t, l, request())) // the server knows the scripts
	req := request()
	before := calls(t, r, "evalsha")
	hold := proxy.HoldNext(testserver.Contains(req.KeyID.String()))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // so that a busy machine has sent it
	defer cancel()
	if lease, err := l.TryAcquire(ctx, req); !errors.Is(err, driver.ErrUnavailable) {
		t.Fatalf("TryAcquire() held on its way = %v, %v, want %v", lease, err, driver.ErrUnavailable)
	}
	await(t, "held request", hold.Held())
	for calls(t, r, "evalsha") == before { // it is undone
		if t.Context().Err() != nil {
			t.Fatal("no release was sent")
		}
	}
	hold.Release()
	for n := "0"; n != "1"; n = do(t, r, "EXISTS", l.keeper.keys.Lock(req.KeyID))[0] { // it has arrived
		if t.Context().Err() != nil {
			t.Fatal("the request never arrived")
		}
	}
	start := time.Now()
	release(t, takeSoon(t, other, again(req)))
	if took := time.Since(start); took > DefaultTTL*8/10 {
		t.Errorf("the lock was free after %v, want it undone before its time to live", took)
	}
}

// A heartbeat without a reply is sent again.
func TestLostHeartbeat(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	proxy := testserver.StartRedisProxy(t, r.Addr())
	l, req := open(t, connect(t, 1, proxy.Addr()), WithTTL(6*time.Second)), request()
	lease := take(t, l, req)
	first, second := proxy.DropNextReply(testserver.Contains(req.KeyID.String())), proxy.DropNextRequest(testserver.Contains(req.KeyID.String()))
	await(t, "first heartbeat", first)
	await(t, "second heartbeat", second)
	outlive(t, leaseclock.Now().Add(7*time.Second), lease)
	release(t, lease)
}

// outlive waits until end, when leases would be lost if nothing had renewed them.
func outlive(t *testing.T, end leaseclock.Instant, leases ...driver.Lease) {
	t.Helper()
	for leaseclock.Now().Before(end) {
		time.Sleep(time.Millisecond)
		for _, lease := range leases {
			if err := lease.Err(); err != nil {
				t.Fatalf("Err() while it should be renewed: %v", err)
			}
		}
	}
}
