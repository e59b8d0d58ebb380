package redislock

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// The timer of a lease follows its renewals. The heartbeat cannot stand in for it, because it
// waits for Redis.
func TestDoneClosesAtTheEndOfTheLatestTrust(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		lease := take(t, l, request())
		for len(f.times("extend")) == 0 {
			time.Sleep(tickOf(l.ttl))
		}
		f.to("extend", silence)
		<-lease.Done()
		if got, want := time.Since(f.began), f.times("extend")[0]+trustOf(l.ttl); got != want {
			t.Errorf("Done() closed after %v, want %v, the end of the trust", got, want)
		}
	})
}

// The machine is suspended after a renewal, and its timer is set. The heartbeat looks at the clock.
func TestSuspendedHolderIsWokenAfterARenewal(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, clock *leaseclock.Manual) {
		lease := take(t, l, request())
		time.Sleep(4*time.Second + tickOf(l.ttl)/2) // between two looks
		f.to("extend", silence)
		clock.Advance(l.ttl)
		woken := time.Now()
		<-lease.Done()
		if took := time.Since(woken); took > tickOf(l.ttl) {
			t.Errorf("Done() closed %v after the suspension, want %v at most", took, tickOf(l.ttl))
		}
	})
}

// The answer to a renewal comes after the end of the trust. A holder may have seen that end.
func TestLateRenewalChangesNothing(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, _ *fake, l *Locker, clock *leaseclock.Manual) {
		lease := take(t, l, request()).(*leaseType)
		clock.Advance(time.Second)
		early := l.now()
		clock.Advance(time.Second)
		sent := l.now()
		lease.renewal(sent, true)
		lease.renewal(early, true)
		if left := lease.left(); left != trustOf(l.ttl) {
			t.Errorf("a lease is trusted for %v after the answer to an earlier renewal, want %v", left, trustOf(l.ttl))
		}
		clock.Advance(trustOf(l.ttl))
		lease.renewal(sent, true)
		if err := lease.Err(); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Err() after a late renewal = %v, want %v", err, driver.ErrLeaseLost)
		}
	})
}

// Redis says nothing. Each request ends when its answer would be useless, whatever time the
// caller has.
func TestRequestsEndByThemselves(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		lease := take(t, l, request())
		f.to("acquire", silence)
		f.to("release", silence)
		patient, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for _, ctx := range []context.Context{t.Context(), patient} {
			time.Sleep(probePause)
			began := time.Now()
			if _, err := l.TryAcquire(ctx, request()); !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("TryAcquire() without an answer = %v, want %v", err, driver.ErrUnavailable)
			}
			if took := time.Since(began); took != trustOf(l.ttl) {
				t.Errorf("TryAcquire() took %v, want %v", took, trustOf(l.ttl))
			}
		}
		lease.ReleaseInBackground()
		synctest.Wait()
		began, over := time.Now(), errors.New("over")
		ending, end := context.WithCancelCause(t.Context())
		end(over)
		if err := l.Close(ending); !errors.Is(err, over) {
			t.Errorf("Close() = %v, want %v", err, over)
		}
		if took := time.Since(began); took > patienceOf(l.ttl) {
			t.Errorf("Close() took %v, want %v at most", took, patienceOf(l.ttl))
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
		ctx, cancel := context.WithTimeout(t.Context(), 2*probePause)
		defer cancel()
		if lease, err := l.TryAcquire(ctx, request()); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("TryAcquire() = %v, %v, want %v", lease, err, context.DeadlineExceeded)
		}
		if lease, err := l.TryAcquire(t.Context(), request()); !errors.Is(err, errNoAnswer) {
			t.Errorf("TryAcquire() after that = %v, %v, want %v", lease, err, errNoAnswer)
		}
		time.Sleep(probePause + mostPause)
		if n := len(f.times("release")); n == 0 {
			t.Error("no release was sent for a lock that may have been taken")
		}
	})
}

// A part of Redis that did not answer gets one request per pause.
func TestOneCallerLooksAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(1)
		h.note(t.Context(), 0, time.Now(), io.EOF)
		for range 3 {
			if h.admit(0) {
				t.Error("admit() = true during the pause, want false")
			}
			time.Sleep(probePause)
			if first, second := h.admit(0), h.admit(0); !first || second {
				t.Errorf("admit() = %t and then %t after the pause, want one caller", first, second)
			}
		}
	})
}

// Only a request that had the time of a pause can tell of an outage by not being answered.
func TestImpatientCallerSparesTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name       string
			time, took time.Duration
			err        error
			open       bool
		}{
			{"little time", probePause - 1, probePause - 1, context.DeadlineExceeded, true},
			{"little time, ended by the connection", probePause - 1, probePause - 1, os.ErrDeadlineExceeded, true},
			{"little time, and the client's own end", probePause - 1, probePause / 2, os.ErrDeadlineExceeded, false},
			{"little time, and a broken connection", probePause - 1, probePause - 1, io.EOF, false},
			{"the time of a pause", probePause, probePause, context.DeadlineExceeded, false},
			{"much time", time.Second, time.Second, os.ErrDeadlineExceeded, false},
			{"the client's own end", time.Second, probePause / 2, os.ErrDeadlineExceeded, false},
			{"cancelled", time.Second, probePause / 2, context.Canceled, true},
		} {
			h := newHealth(1)
			ctx, cancel := context.WithTimeout(t.Context(), tt.time)
			sent := time.Now()
			time.Sleep(tt.took)
			h.note(ctx, 0, sent, tt.err)
			cancel()
			if got := h.admit(0); got != tt.open {
				t.Errorf("%s: admit() = %t, want %t", tt.name, got, tt.open)
			}
		}
	})
}

// A ping that fails tells nobody that Redis answers again.
func TestFailedPingLeavesThePause(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		f.to("ping", says(nil, io.EOF))
		l.keeper.health.note(t.Context(), 0, time.Now(), io.EOF)
		if err := l.Ping(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Ping() = %v, want %v", err, driver.ErrUnavailable)
		}
		if l.keeper.health.admit(0) {
			t.Error("admit() = true after a failed ping, want false")
		}
		f.to("ping", says(nil, nil))
		if err := l.Ping(t.Context()); err != nil || !l.keeper.health.admit(0) {
			t.Errorf("Ping() = %v, want <nil>, and the end of the pause", err)
		}
	})
}
