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

// A lease's release sends one request, also if it finds that the lock is gone. The undoing of
// a request that may still arrive goes on until it finds the lock.
func TestReleaseAsksUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		want := 0
		sent := func(name string, n int) {
			t.Helper()
			want += n
			time.Sleep(2 * ttl)
			if got := len(f.times("remove")); got != want {
				t.Errorf("%s: %d removals were sent so far, want %d", name, got, want)
			}
		}
		for _, found := range []error{nil, ErrGone} {
			f.to("remove", says(found))
			if err := take(t, l).Release(t.Context()); err != nil {
				t.Errorf("Release() = %v, want <nil>", err)
			}
			sent("Release()", 1)
			lease := take(t, l)
			for range 2 {
				lease.ReleaseInBackground()
			}
			sent("ReleaseInBackground(), twice", 1)
		}
		finds := []error{ErrGone, ErrGone, nil}
		f.to("remove", func(context.Context) error {
			first := finds[0]
			finds = finds[1:]
			return first
		})
		f.to("acquire", says(errors.New("lost")))
		if lease, err := l.TryAcquire(t.Context(), driver.LockRequest{}); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("TryAcquire() = %v, %v, want %v", lease, err, driver.ErrUnavailable)
		}
		sent("TryAcquire() that arrives late", 3)
	})
}

// A second Release waits for the same answer as the first, and asks for nothing.
func TestReleaseTwiceAtOnce(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		lease, answer, results := take(t, l), make(chan struct{}), make(chan error, 2)
		f.to("remove", func(context.Context) error { <-answer; return nil })
		go func() { results <- lease.Release(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := lease.Release(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("second Release() = %v before the first has its answer, want %v", err, context.DeadlineExceeded)
		}
		go func() { results <- lease.Release(t.Context()) }()
		synctest.Wait()
		close(answer)
		for range 2 {
			if err := <-results; err != nil {
				t.Errorf("Release() = %v, want <nil>", err)
			}
		}
		if n := len(f.times("remove")); n != 1 {
			t.Errorf("%d removals were sent, want 1", n)
		}
	})
}

// A release without an answer gives up when the lock must have expired. Its error says why.
func TestReleaseGivesUpWhenTheLockHasExpired(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		lease, broken := take(t, l), errors.New("broken")
		f.to("remove", says(broken))
		began := time.Now()
		if err := lease.Release(t.Context()); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, broken) {
			t.Errorf("Release() without an answer = %v, want %v", err, broken)
		}
		if took := time.Since(began); took < ttl || took > 2*ttl {
			t.Errorf("Release() gave up after %v, want some more than %v", took, ttl)
		}
		tries := f.times("remove")
		if last := tries[len(tries)-1] - tries[len(tries)-2]; last > 2*mostPause {
			t.Errorf("Release() paused for %v at last, want %v at most", last, 2*mostPause)
		}
	})
}

// The lock of an abandoned lease is left to time out. Its release says so, also to a caller
// without time.
func TestReleaseOfAnAbandonedLeaseFails(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, _ *fake, l *Locker, _ *leaseclock.Manual) {
		var leases []driver.Lease
		for range 100 {
			leases = append(leases, take(t, l))
		}
		l.Abandon()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, lease := range leases {
			if err := lease.Release(ended); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, ErrClosed) {
				t.Fatalf("Release() = %v, want %v", err, ErrClosed)
			}
		}
	})
}
