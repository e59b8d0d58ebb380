package memorylock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	idemtest.RunLocker(t, idemtest.LockerHarness{
		New:    func(*testing.T) driver.Locker { return memorylock.New() },
		Lose:   revoke,
		Rounds: 100,
	})
}

// Two Lockers of one domain stand for a process and its successor. They do not see
// each other's locks, but the successor's fences are ahead.
func TestFencesOfASuccessorAreAhead(t *testing.T) {
	t.Parallel()
	id := idem.NewKeyID("scope", "successor")
	var last driver.Fence
	for range 3 {
		lease := take(t, memorylock.New(memorylock.WithDomain("ledger")), id)
		if got, want := lease.Fence().Domain, "ledger"; got != want {
			t.Errorf("Fence().Domain = %q, want %q", got, want)
		}
		if last.Token != 0 && !last.Before(lease.Fence()) {
			t.Errorf("Fence() = %s after %s, want a greater one", lease.Fence(), last)
		}
		last = lease.Fence()
	}
}

func TestFencesStartFromTheWallClock(t *testing.T) {
	t.Parallel()
	before := uint64(time.Now().Add(-24 * time.Hour).UnixNano())
	after := uint64(time.Now().Add(24 * time.Hour).UnixNano())
	if got := take(t, memorylock.New(), driver.KeyID{}).Fence().Token; got < before || got > after {
		t.Errorf("Fence().Token = %d, want nanoseconds since 1970", got)
	}
}

func TestDomainIsRandomUnlessNamed(t *testing.T) {
	t.Parallel()
	a, b := memorylock.New(nil), memorylock.New(memorylock.WithDomain(""))
	if a.Domain() == b.Domain() || len(a.Domain()) != 36 {
		t.Errorf("Domain() = %q and %q, want two UUIDs", a.Domain(), b.Domain())
	}
	if got, want := take(t, a, driver.KeyID{}).Fence().Domain, a.Domain(); got != want {
		t.Errorf("Fence().Domain = %q, want Domain() %q", got, want)
	}
	if got := a.Visibility(); got != driver.VisibilityProcess {
		t.Errorf("Visibility() = %v, want %v", got, driver.VisibilityProcess)
	}
}

func TestHolderNamesTheAttempt(t *testing.T) {
	t.Parallel()
	l, req := memorylock.New(), driver.LockRequest{KeyID: idem.NewKeyID("scope", "holder"), Nonce: driver.NewNonce()}
	if _, ok := l.Holder(req.KeyID); ok {
		t.Errorf("Holder(%s) of a free lock = true, want false", req.KeyID)
	}
	lease, err := l.TryAcquire(t.Context(), req)
	if err != nil {
		t.Fatalf("TryAcquire(%s) = %v, want a lease", req.KeyID, err)
	}
	if got, ok := l.Holder(req.KeyID); !ok || got != req.Nonce {
		t.Errorf("Holder(%s) = %s, %v, want %s, true", req.KeyID, got, ok, req.Nonce)
	}
	lease.ReleaseInBackground()
	if _, ok := l.Holder(req.KeyID); ok {
		t.Errorf("Holder(%s) after release = true, want false", req.KeyID)
	}
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	l, id := memorylock.New(), idem.NewKeyID("scope", "revoke")
	if l.Revoke(id) {
		t.Errorf("Revoke(%s) of a free lock = true, want false", id)
	}
	lease := take(t, l, id)
	if !l.Revoke(id) {
		t.Errorf("Revoke(%s) of a held lock = false, want true", id)
	}
	if l.Revoke(id) {
		t.Errorf("Revoke(%s) a second time = true, want false", id)
	}
	if err := lease.Err(); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Err() after Revoke = %v, want %v", err, driver.ErrLeaseLost)
	}
}

func TestCheckTellsAnEndedContext(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	l, id := memorylock.New(), idem.NewKeyID("scope", "check")
	lease := take(t, l, id)
	if _, err := lease.Check(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Check(ended) = %v, want %v", err, context.Canceled)
	}
	l.Revoke(id)
	if _, err := lease.Check(ended); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Check(ended) of a lost lease = %v, want %v", err, driver.ErrLeaseLost)
	}
	if err := l.Ping(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Ping(ended) = %v, want %v", err, context.Canceled)
	}
}

func BenchmarkTryAcquireRelease(b *testing.B) {
	l := memorylock.New()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		req := driver.LockRequest{KeyID: idem.NewKeyID("bench", idem.Key(driver.NewNonce().String()))}
		for pb.Next() {
			lease, err := l.TryAcquire(b.Context(), req)
			if err != nil {
				b.Errorf("TryAcquire(%s) = %v, want a lease", req.KeyID, err)
				return
			}
			lease.ReleaseInBackground()
		}
	})
}

func take(t *testing.T, l *memorylock.Locker, id driver.KeyID) driver.Lease {
	t.Helper()
	lease, err := l.TryAcquire(t.Context(), driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()})
	if err != nil {
		t.Fatalf("TryAcquire(%s) = %v, want a lease", id, err)
	}
	return lease
}

func revoke(t *testing.T, l driver.Locker, id driver.KeyID, _ driver.Lease) {
	t.Helper()
	if !l.(*memorylock.Locker).Revoke(id) {
		t.Errorf("Revoke(%s) = false, want true", id)
	}
}
