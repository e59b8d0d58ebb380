package leasing

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// The server says nothing. Each request ends when its answer would be useless, whatever time the
// caller has.
func TestRequestsEndByThemselves(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		for _, what := range []string{"acquire", "extend", "remove"} {
			f.to(what, deaf)
		}
		patient, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for _, ctx := range []context.Context{t.Context(), patient} {
			began := time.Now()
			if _, err := l.TryAcquire(ctx, driver.LockRequest{}); !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("TryAcquire() without an answer = %v, want %v", err, driver.ErrUnavailable)
			}
			if took := time.Since(began); took != TrustOf(ttl) {
				t.Errorf("TryAcquire() took %v, want %v", took, TrustOf(ttl))
			}
		}
		f.to("acquire", nil)
		lease, checked := take(t, l), take(t, l)
		began := time.Now()
		if _, err := checked.Check(patient); !errors.Is(err, driver.ErrLeaseLost) || time.Since(began) != TrustOf(ttl) {
			t.Errorf("Check() = %v after %v, want %v after %v", err, time.Since(began), driver.ErrLeaseLost, TrustOf(ttl))
		}
		lease.ReleaseInBackground()
		synctest.Wait()
		began, over := time.Now(), errors.New("over")
		ending, end := context.WithCancelCause(t.Context())
		end(over)
		if err := l.Close(ending); !errors.Is(err, over) {
			t.Errorf("Close() = %v, want %v", err, over)
		}
		if took := time.Since(began); took != PatienceOf(ttl) {
			t.Errorf("Close() took %v, want %v", took, PatienceOf(ttl))
		}
	})
}

// The answer to a TryAcquire comes when Close has begun. Nobody would renew the lease.
func TestLockThatCloseOvertookIsUndone(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		f.to("acquire", func(context.Context) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.closing = true
			return nil
		})
		if lease, err := l.TryAcquire(t.Context(), driver.LockRequest{}); !errors.Is(err, ErrClosed) || !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("TryAcquire() = %v, %v, want %v", lease, err, ErrClosed)
		}
		synctest.Wait()
		if n := len(f.times("remove")); n != 1 {
			t.Errorf("%d removals were sent, want 1", n)
		}
	})
}

// Close ends the look of a waiter, and waits for a client that does not notice that. The look then ends by itself.
func TestCloseWaitsForALook(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer func(context.Context) error
		takes  time.Duration
	}{
		{"the client notices", silence, 0},
		{"the client goes by its deadline", deaf, lookTimeout},
	} {
		withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
			f.to("remaining", tt.answer)
			waits := make(chan error, 1)
			go func() { waits <- l.Wait(t.Context(), driver.KeyID{}) }()
			synctest.Wait()
			if err := l.Close(t.Context()); err != nil {
				t.Errorf("%s: Close() = %v, want <nil>", tt.name, err)
			}
			if took := time.Since(f.began); took != tt.takes {
				t.Errorf("%s: Close() took %v, want %v", tt.name, took, tt.takes)
			}
			if err := <-waits; !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, ErrClosed) || errors.Is(err, context.Canceled) {
				t.Errorf("%s: Wait() = %v, want %v", tt.name, err, ErrClosed)
			}
		})
	}
}

// A waiter looks again when the lock expires.
func TestWaitLooksWhenTheLockExpires(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		f.left = FirstLook / 5
		ctx, cancel := context.WithTimeout(t.Context(), time.Second-FirstLook/10)
		defer cancel()
		if err := l.Wait(ctx, driver.KeyID{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait() = %v, want %v", err, context.DeadlineExceeded)
		}
		if n, want := len(f.times("remaining")), int(time.Second/f.left); n != want {
			t.Errorf("Wait() looked %d times, want %d", n, want)
		}
	})
}

// The end of the waiter's context is not an outage, and a failed look is one at once.
func TestWaitTellsItsContextFromAnOutage(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		f.to("remaining", silence)
		for _, left := range []time.Duration{time.Millisecond, time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			defer cancel()
			if err := l.Wait(ctx, driver.KeyID{}); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("Wait() for %v = %v, want %v alone", left, err, context.DeadlineExceeded)
			}
		}
		time.Sleep(lookTimeout)
		broken := errors.New("broken")
		f.to("remaining", says(broken))
		began := time.Now()
		if err := l.Wait(t.Context(), driver.KeyID{}); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, broken) || time.Since(began) != 0 {
			t.Errorf("Wait() = %v after %v, want %v at once", err, time.Since(began), broken)
		}
	})
}
