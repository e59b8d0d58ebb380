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
	"github.com/idemkeeper/idemkeeper/internal/leasing"
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
		time.Sleep(DefaultTTL)
		for _, what := range []string{"acquire", "release"} {
			if at := f.times(what); len(at) != 0 {
				t.Errorf("%s was sent at %v, want nothing", what, at)
			}
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
			if err := l.Wait(t.Context(), request().KeyID); !errors.Is(err, leasing.ErrNoAnswer) {
				t.Errorf("Wait() right after %s = %v, want %v", what, err, leasing.ErrNoAnswer)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("%s failed after %v, want at once", what, took)
			}
			f.to(what, sound)
			time.Sleep(2 * DefaultTTL) // the undoing of the acquire ends
			release(t, lease)
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
		l.keeper.health.Note(t.Context(), 0, time.Now(), io.EOF)
		waits.ReleaseInBackground()
		time.Sleep(leasing.ProbePause - 1)
		if at := f.times("release"); len(at) != 0 {
			t.Errorf("a release was sent at %v, want none before %v", at, leasing.ProbePause)
		}
		release(t, waits)
		l.keeper.health.Note(t.Context(), 0, time.Now(), io.EOF)
		time.Sleep(leasing.ProbePause)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_ = looks.Release(ended)
		synctest.Wait()
		if at := f.times("release"); len(at) != 2 {
			t.Errorf("releases were sent at %v, want the second one by now", at)
		}
	})
}

// The time of a call is over while those in its pipeline have more. Redis may apply it all the
// same, so it is undone. The next caller need not find out by itself.
func TestAcquireEndsBeforeItsPipeline(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		f.to("acquire", silence)
		for range 2 { // the first one goes alone, the second one waits
			go func() { _, _ = l.TryAcquire(t.Context(), request()) }()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*leasing.ProbePause)
		defer cancel()
		if lease, err := l.TryAcquire(ctx, request()); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("TryAcquire() = %v, %v, want %v", lease, err, context.DeadlineExceeded)
		}
		if lease, err := l.TryAcquire(t.Context(), request()); !errors.Is(err, leasing.ErrNoAnswer) {
			t.Errorf("TryAcquire() after that = %v, %v, want %v", lease, err, leasing.ErrNoAnswer)
		}
		time.Sleep(time.Second)
		if n := len(f.times("release")); n == 0 {
			t.Error("no release was sent for a lock that may have been taken")
		}
	})
}

// A ping that fails tells nobody that Redis answers again.
func TestFailedPingLeavesThePause(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		f.to("ping", says(nil, io.EOF))
		l.keeper.health.Note(t.Context(), 0, time.Now(), io.EOF)
		if err := l.Ping(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Ping() = %v, want %v", err, driver.ErrUnavailable)
		}
		if l.keeper.health.Admit(0) {
			t.Error("Admit() = true after a failed ping, want false")
		}
		f.to("ping", says(nil, nil))
		if err := l.Ping(t.Context()); err != nil || !l.keeper.health.Admit(0) {
			t.Errorf("Ping() = %v, want <nil>, and the end of the pause", err)
		}
	})
}
