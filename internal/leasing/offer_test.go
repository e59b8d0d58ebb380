package leasing

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

func offer(t *testing.T, l *Locker) *Offer {
	t.Helper()
	o, err := l.Offer(t.Context(), driver.LockRequest{})
	if err != nil {
		t.Fatalf("Offer() = %v, want an offer", err)
	}
	return o
}

// The machine is suspended while another call takes the lock. Trust counts from the offer, so the lease comes too late, and
// nothing but Retake touches the lock.
func TestOfferThatIsTakenTooLate(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, clock *leaseclock.Manual) {
		early, late := offer(t, l), offer(t, l)
		clock.Advance(time.Second)
		if lease, err := early.Taken(driver.Fence{}); err != nil || lease.left() != TrustOf(ttl)-time.Second {
			t.Errorf("Taken() = %v after a second, want a lease that is trusted from the offer on", err)
		}
		clock.Advance(TrustOf(ttl) - time.Second)
		if lease, err := late.Taken(driver.Fence{}); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Taken() = %v, %v, want %v", lease, err, driver.ErrUnavailable)
		}
		broken := errors.New("broken")
		f.to("acquire", says(broken))
		if lease, err := late.Retake(t.Context()); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, broken) {
			t.Errorf("Retake() = %v, %v, want %v", lease, err, broken)
		}
		f.to("acquire", nil)
		lease, err := late.Retake(t.Context())
		if err != nil || lease.left() != TrustOf(ttl) || lease.lock != late.lock {
			t.Errorf("Retake() = %v, %v, want a lease of the same owner with its whole trust", lease, err)
		}
		time.Sleep(ttl)
		if n := len(f.times("remove")); n != 0 {
			t.Errorf("%d removals were sent under the lease of Retake, want none", n)
		}
	})
}

// A lease whose lock another call has given back is over, and asks for nothing.
func TestReturnedLease(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		lease, err := offer(t, l).Taken(driver.Fence{})
		if err != nil {
			t.Fatalf("Taken() = %v, want a lease", err)
		}
		lease.Returned()
		<-lease.Done()
		if err := lease.Err(); err != nil {
			t.Errorf("Err() = %v, want <nil>", err)
		}
		if _, err := lease.Check(t.Context()); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Check() = %v, want %v", err, driver.ErrLeaseLost)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("Release() = %v, want <nil>", err)
		}
		lease.Returned()
		lease.ReleaseInBackground()
		released := take(t, l).(*Lease)
		released.ReleaseInBackground()
		released.Returned()
		synctest.Wait()
		if n := len(f.times("remove")); n != 1 {
			t.Errorf("%d removals were sent, want that of the lease that was released first", n)
		}
	})
}

// A closed locker offers nothing, and takes no lock that was offered before.
func TestOffersOfAClosedLocker(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		o := offer(t, l)
		l.Abandon()
		for name, call := range map[string]func() error{
			"Offer":  func() error { _, err := l.Offer(t.Context(), driver.LockRequest{}); return err },
			"Taken":  func() error { _, err := o.Taken(driver.Fence{}); return err },
			"Retake": func() error { _, err := o.Retake(t.Context()); return err },
		} {
			if err := call(); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, ErrClosed) {
				t.Errorf("%s() = %v, want %v", name, err, ErrClosed)
			}
		}
		if n := len(f.times("acquire")); n != 0 {
			t.Errorf("%d locks were asked for, want none", n)
		}
	})
}
