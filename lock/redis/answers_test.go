package redislock

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// An answer that is not understood may mean that the lock was taken. It is undone, and nobody is
// told that another owner has the lock.
func TestAnswerThatIsNoFenceIsUndone(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		for i, answer := range []any{"0 d", "x d", "7", "7 ", "-1 d", "99999999999999999999 d", int64(7), nil} {
			f.to("acquire", says(answer, nil))
			if answer == nil {
				f.to("acquire", says(nil, goredis.Nil)) // as the client reads it
			}
			if lease, err := l.TryAcquire(t.Context(), request()); !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrLocked) {
				t.Errorf("TryAcquire() with the answer %v = %v, %v, want %v", answer, lease, err, driver.ErrUnavailable)
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
			lease := take(t, l, request())
			for range 2 {
				lease.ReleaseInBackground()
			}
			sent("ReleaseInBackground(), twice, of a lock that is "+name, 1)
		}
		finds := []int64{1, 0, 0}
		f.to("release", func(context.Context) (any, error) {
			last := finds[len(finds)-1]
			finds = finds[:len(finds)-1]
			return last, nil
		})
		f.to("acquire", says(nil, errors.New("lost")))
		if lease, err := l.TryAcquire(t.Context(), request()); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("TryAcquire() = %v, %v, want %v", lease, err, driver.ErrUnavailable)
		}
		sent("TryAcquire() that arrives late", 3)
	})
}

// The answer to a TryAcquire comes when Close has begun. Nobody would renew the lease.
func TestLockThatCloseOvertookIsUndone(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		f.to("acquire", func(context.Context) (any, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.closing = true
			return "7 d", nil
		})
		if lease, err := l.TryAcquire(t.Context(), request()); !errors.Is(err, errClosed) || !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("TryAcquire() = %v, %v, want %v", lease, err, errClosed)
		}
		synctest.Wait()
		if n := len(f.times("release")); n != 1 {
			t.Errorf("%d releases were sent, want 1", n)
		}
	})
}

// Close waits for the look of a waiter, which ends by itself.
func TestCloseWaitsForALook(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		f.to("pttl", silence)
		go func() { _ = l.Wait(t.Context(), request().KeyID) }()
		synctest.Wait()
		if err := l.Close(t.Context()); err != nil {
			t.Errorf("Close() = %v, want <nil>", err)
		}
		if took := time.Since(f.began); took != lookTimeout {
			t.Errorf("Close() took %v, want %v", took, lookTimeout)
		}
	})
}

// A release without an answer gives up when the lock must have expired. Its error says why.
func TestReleaseGivesUpWhenTheLockHasExpired(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		lease, broken := take(t, l, request()), errors.New("broken")
		f.to("release", says(nil, broken))
		began := time.Now()
		if err := lease.Release(t.Context()); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, broken) {
			t.Errorf("Release() without an answer = %v, want %v", err, broken)
		}
		if took := time.Since(began); took < l.ttl || took > 2*l.ttl {
			t.Errorf("Release() gave up after %v, want some more than %v", took, l.ttl)
		}
		tries := f.times("release")
		if last := tries[len(tries)-1] - tries[len(tries)-2]; last > 2*mostPause {
			t.Errorf("Release() paused for %v at last, want %v at most", last, 2*mostPause)
		}
	})
}

// A caller without time asks for nothing, so there is nothing to undo.
func TestNothingIsSentWithAnEndedContext(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		ctx, cancel := context.WithCancelCause(t.Context())
		over := errors.New("over")
		cancel(over)
		if lease, err := l.TryAcquire(ctx, request()); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, over) {
			t.Errorf("TryAcquire() with an ended context = %v, %v, want %v", lease, err, over)
		}
		time.Sleep(l.ttl)
		for _, what := range []string{"acquire", "release"} {
			if at := f.times(what); len(at) != 0 {
				t.Errorf("%s was sent at %v, want nothing", what, at)
			}
		}
	})
}

// A waiter looks again when the lock expires.
func TestWaitLooksWhenTheLockExpires(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		f.to("pttl", says(firstLook/5, nil))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second-firstLook/10)
		defer cancel()
		if err := l.Wait(ctx, request().KeyID); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait() = %v, want %v", err, context.DeadlineExceeded)
		}
		if n, want := len(f.times("pttl")), int(time.Second/(firstLook/5)); n != want {
			t.Errorf("Wait() looked %d times, want %d", n, want)
		}
	})
}

// The failure of any request spares the other callers the same wait. A waiter gets the failure at
// once, whatever time it has.
func TestFailureOfAnyRequestIsNoted(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		patient, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		broken := errors.New("broken")
		for what, call := range map[string]func(lease driver.Lease) error{
			"acquire": func(driver.Lease) error { _, err := l.TryAcquire(t.Context(), request()); return err },
			"extend":  func(lease driver.Lease) error { _, err := lease.Check(t.Context()); return err },
			"pttl":    func(driver.Lease) error { return l.Wait(patient, request().KeyID) },
		} {
			lease := take(t, l, request())
			sound := f.answers[what]
			f.to(what, says(nil, broken))
			began := time.Now()
			if err := call(lease); !errors.Is(err, broken) || !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("%s that fails = %v, want %v", what, err, broken)
			}
			if err := l.Wait(t.Context(), request().KeyID); !errors.Is(err, errNoAnswer) {
				t.Errorf("Wait() right after %s = %v, want %v", what, err, errNoAnswer)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("%s failed after %v, want at once", what, took)
			}
			f.to(what, sound)
			time.Sleep(2 * l.ttl) // the undoing of the acquire ends
			release(t, lease)
		}
	})
}

// A locker forgets the leases that have ended.
func TestEndedLeasesAreForgotten(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		release(t, take(t, l, request()))
		f.to("extend", says(int64(0), nil))
		if left, err := take(t, l, request()).Check(t.Context()); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Check() of a lock that is gone = %v, %v, want %v", left, err, driver.ErrLeaseLost)
		}
		if n := len(l.held); n != 0 {
			t.Errorf("%d leases are kept, want 0", n)
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
			leases = append(leases, take(t, l, request()))
		}
		l.Abandon()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, lease := range leases {
			if err := lease.Release(ended); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, errClosed) {
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
			if err := l.Wait(ctx, request().KeyID); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("Wait() for %v = %v, want %v alone", left, err, context.DeadlineExceeded)
			}
			synctest.Wait() // the look has ended, too
			l.keeper.health.note(t.Context(), 0, time.Now(), nil)
			cancelled, stop := context.WithCancel(t.Context())
			time.AfterFunc(left, stop)
			if err := l.Wait(cancelled, request().KeyID); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnavailable) {
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
	if c, err := newConfig([]Option{WithTTL(minTTL)}); err != nil || c.ttl != minTTL {
		t.Errorf("newConfig() = %v, %v, want the shortest time to live, %v", c.ttl, err, minTTL)
	}
	if c, err := newConfig([]Option{WithTTL(minTTL - 1)}); err == nil {
		t.Errorf("newConfig() = %v, want an error for less than %v", c.ttl, minTTL)
	}
	if i, err := NewInspector(nil, WithPrefix("")); err == nil {
		t.Errorf("NewInspector() with an empty prefix = %v, want an error", i)
	}
	defer func() {
		if recover() == nil {
			t.Error("MustNewInspector() without a client did not panic")
		}
	}()
	MustNewInspector(nil)
}

// A release waits while Redis is known not to answer. It looks again also for a caller without time.
func TestReleaseSparesARedisThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		waits, looks := take(t, l, request()), take(t, l, request())
		l.keeper.health.note(t.Context(), 0, time.Now(), io.EOF)
		waits.ReleaseInBackground()
		time.Sleep(probePause - 1)
		if at := f.times("release"); len(at) != 0 {
			t.Errorf("a release was sent at %v, want none before %v", at, probePause)
		}
		release(t, waits)
		l.keeper.health.note(t.Context(), 0, time.Now(), io.EOF)
		time.Sleep(probePause)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_ = looks.Release(ended)
		synctest.Wait()
		if at := f.times("release"); len(at) != 2 {
			t.Errorf("releases were sent at %v, want the second one by now", at)
		}
	})
}
