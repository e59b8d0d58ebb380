package redislock

import (
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The machine is suspended: the lease clock jumps, and the timers stand still. What
// they are set to is too far away for any of these tests.

const longTTL = 2 * time.Minute

func withClock(now leaseclock.Source) Option { return func(c *config) { c.now = now } }

func TestSuspendedHolderIsTold(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(driver.Lease) error{
		"by Err": func(lease driver.Lease) error { return lease.Err() },
		"by Check": func(lease driver.Lease) error {
			_, err := lease.Check(t.Context())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := leaseclock.NewManual()
			l := open(t, connect(t, 2, sharedAddr(t)), WithPrefix(testserver.KeyPrefix(t)), WithTTL(longTTL), withClock(clock.Now))
			lease := take(t, l, request())
			if err := ask(lease); err != nil {
				t.Fatalf("before: %v", err)
			}
			clock.Advance(trustOf(longTTL))
			if err := ask(lease); !errors.Is(err, driver.ErrLeaseLost) {
				t.Errorf("after a suspension of %v: %v, want %v", trustOf(longTTL), err, driver.ErrLeaseLost)
			}
			select {
			case <-lease.Done():
			default:
				t.Error("Done() is not closed where Err() tells of the loss")
			}
		})
	}
}

// A holder that only waits for Done is told soon after the machine has woken up.
func TestSuspendedHolderIsWoken(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute // the timer is set to 54 s
	clock := leaseclock.NewManual()
	proxy := testserver.StartRedisProxy(t, sharedAddr(t))
	l := open(t, connect(t, 2, proxy.Addr()), WithPrefix(testserver.KeyPrefix(t)), WithTTL(ttl), withClock(clock.Now))
	lease := take(t, l, request())
	proxy.Freeze(testserver.Both) // no answer to a heartbeat tells it
	t.Cleanup(proxy.Restore)
	clock.Advance(ttl)
	await(t, "Done() after a suspension", lease.Done())
	wantLost(t, lease)
}

// The machine is suspended while a lock is taken. The answer comes too late.
func TestSuspendedWhileTakingALock(t *testing.T) {
	t.Parallel()
	proxy := testserver.StartRedisProxy(t, sharedAddr(t))
	clock, prefix, req := leaseclock.NewManual(), testserver.KeyPrefix(t), request()
	l := open(t, connect(t, 1, proxy.Addr()), WithPrefix(prefix), WithTTL(longTTL), withClock(clock.Now))
	release(t, take(t, l, request())) // so that the server knows the script
	hold := proxy.HoldNextReply(testserver.Contains(req.KeyID.String()))
	got := make(chan error, 1)
	go func() {
		_, err := l.TryAcquire(t.Context(), req)
		got <- err
	}()
	await(t, "answer", hold.Held())
	clock.Advance(trustOf(longTTL))
	hold.Release()
	if err := <-got; !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("TryAcquire() = %v, want %v", err, driver.ErrUnavailable)
	}
	other := open(t, connect(t, 2, sharedAddr(t)), WithPrefix(prefix))
	release(t, takeSoon(t, other, req)) // it was undone
}

// The machine is suspended while a lock is renewed. Redis has counted the time to live since before
// that.
func TestSuspendedWhileRenewingALock(t *testing.T) {
	t.Parallel()
	proxy := testserver.StartRedisProxy(t, sharedAddr(t))
	clock, req := leaseclock.NewManual(), request()
	l := open(t, connect(t, 1, proxy.Addr()), WithPrefix(testserver.KeyPrefix(t)), WithTTL(longTTL), withClock(clock.Now))
	lease := take(t, l, req)
	if _, err := lease.Check(t.Context()); err != nil { // so that the server knows the script
		t.Fatal(err)
	}
	clock.Advance(time.Second) // or the next renewal would be no later than the lock itself, and count for nothing
	hold := proxy.HoldNextReply(testserver.Contains(req.KeyID.String()))
	left := make(chan time.Duration, 1)
	go func() {
		d, err := lease.Check(t.Context())
		if err != nil {
			t.Errorf("Check() = %v", err)
		}
		left <- d
	}()
	await(t, "answer", hold.Held())
	clock.Advance(trustOf(longTTL) / 4) // no heartbeat is due
	hold.Release()
	if got, want := <-left, trustOf(longTTL)-trustOf(longTTL)/4; got != want {
		t.Errorf("Check() = %v after a suspension of %v, want %v", got, trustOf(longTTL)/4, want)
	}
	release(t, lease)
}
