package redislock

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// An answer that is not understood may mean that the lock was taken. It is undone, and nobody is
// told that another owner has the lock.
func TestAnswerThatIsNoFenceIsUndone(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		for i, answer := range []any{"0 d", "x d", "7", "7 ", "-1 d", int64(7), nil} {
			f.to("acquire", says(answer, nil))
			if answer == nil {
				f.to("acquire", says(nil, goredis.Nil)) // as the client reads it
			}
			if lease, err := l.TryAcquire(t.Context(), request()); !errors.Is(err, idem.ErrUnavailable) || errors.Is(err, idem.ErrLocked) {
				t.Errorf("TryAcquire() with the answer %v = %v, %v, want %v", answer, lease, err, idem.ErrUnavailable)
			}
			synctest.Wait()
			if n := len(f.times("release")); n != i+1 {
				t.Errorf("%d releases were sent after the answer %v, want %d", n, answer, i+1)
			}
		}
	})
}

// A lease's release sends one request, also if it finds that the lock is gone. The undoing of
// a request that may still arrive goes on until it finds the lock.
func TestReleaseAsksUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		want := 0
		sent := func(name string, n int) {
			t.Helper()
			want += n
			time.Sleep(2 * l.ttl)
			if got := len(f.times("release")); got != want {
				t.Errorf("%s: %d releases were sent so far, want %d", name, got, want)
			}
		}
		for name, found := range map[string]int64{"there": 1, "gone": 0} {
			f.to("release", says(found, nil))
			release(t, take(t, l, request()))
			sent("Release() of a lock that is "+name, 1)
			take(t, l, request()).ReleaseInBackground()
			sent("ReleaseInBackground() of a lock that is "+name, 1)
		}
		finds := []int64{1, 0, 0}
		f.to("release", func(context.Context) (any, error) {
			last := finds[len(finds)-1]
			finds = finds[:len(finds)-1]
			return last, nil
		})
		f.to("acquire", says(nil, errors.New("lost")))
		if lease, err := l.TryAcquire(t.Context(), request()); !errors.Is(err, idem.ErrUnavailable) {
			t.Errorf("TryAcquire() = %v, %v, want %v", lease, err, idem.ErrUnavailable)
		}
		sent("TryAcquire() that arrives late", 3)
	})
}

// A lock that is taken after Close could not be given back.
func TestNothingIsSentAfterClose(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		if err := l.Close(t.Context()); err != nil {
			t.Fatalf("Close() = %v, want <nil>", err)
		}
		wantClosed(t, l)
		for _, what := range []string{"acquire", "pttl", "set"} {
			if at := f.times(what); len(at) != 0 {
				t.Errorf("%s was sent after Close()", what)
			}
		}
	})
}

// The lock of an abandoned lease is left to time out. Its release says so, also to a caller
// without time.
func TestReleaseOfAnAbandonedLeaseFails(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, _ *fake, l *Locker, _ *leaseclock.Manual) {
		var leases []idem.Lease
		for range 100 {
			leases = append(leases, take(t, l, request()))
		}
		l.Abandon()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, lease := range leases {
			if err := lease.Release(ended); !errors.Is(err, idem.ErrUnavailable) || !errors.Is(err, errClosed) {
				t.Fatalf("Release() = %v, want %v", err, errClosed)
			}
		}
	})
}

// The end of the waiter's context is not an outage.
func TestWaitEndsWithTheCauseOfItsContextAlone(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		f.to("pttl", silence)
		for _, left := range []time.Duration{time.Millisecond, time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			defer cancel()
			if err := l.Wait(ctx, request().KeyID); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, idem.ErrUnavailable) {
				t.Errorf("Wait() for %v = %v, want %v alone", left, err, context.DeadlineExceeded)
			}
			synctest.Wait() // the look has ended, too
			l.keeper.health.note(t.Context(), 0, time.Now(), nil)
			cancelled, stop := context.WithCancel(t.Context())
			time.AfterFunc(left, stop)
			if err := l.Wait(cancelled, request().KeyID); !errors.Is(err, context.Canceled) || errors.Is(err, idem.ErrUnavailable) {
				t.Errorf("Wait() for %v = %v, want %v alone", left, err, context.Canceled)
			}
		}
	})
}

func TestOptions(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	if c, err := newConfig([]Option{nil, WithLogger(log)}); err != nil || c.log != log {
		t.Errorf("newConfig() = %v, %v, want the given logger", c.log, err)
	}
	if c, err := newConfig(nil); err != nil || c.log != slog.Default() {
		t.Errorf("newConfig() = %v, %v, want the default logger", c.log, err)
	}
	if i, err := NewInspector(nil, WithPrefix("")); err == nil {
		t.Errorf("NewInspector() with an empty prefix = %v, want an error", i)
	}
}
