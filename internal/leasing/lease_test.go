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

func TestTrustEndsBeforeTheLockCan(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{time.Second, 10 * time.Second, time.Hour} {
		trust := TrustOf(ttl)
		if fast := ttl - ttl/20; trust >= fast {
			t.Errorf("TrustOf(%v) = %v, want less than %v, when a clock that is 5 %% fast lets it expire", ttl, trust, fast)
		}
		if late := HeartbeatOf(ttl) + TickOf(ttl) + 2*PatienceOf(ttl); late >= trust {
			t.Errorf("TrustOf(%v) = %v, want more than %v, when a heartbeat has failed twice", ttl, trust, late)
		}
	}
}

// The machine was suspended. Its timers stood still.
func TestSuspendedHolderIsTold(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(driver.Lease) error{
		"by Err":   driver.Lease.Err,
		"by Check": func(lease driver.Lease) error { _, err := lease.Check(context.Background()); return err },
	} {
		withFake(t, func(t *testing.T, _ *fake, l *Locker, clock *leaseclock.Manual) {
			lease := take(t, l)
			if err := ask(lease); err != nil {
				t.Errorf("%s: %v before the suspension, want <nil>", name, err)
			}
			clock.Advance(TrustOf(ttl))
			if err := ask(lease); !errors.Is(err, driver.ErrLeaseLost) {
				t.Errorf("%s: %v after a suspension of %v, want %v", name, err, TrustOf(ttl), driver.ErrLeaseLost)
			}
			select {
			case <-lease.Done():
			default:
				t.Errorf("%s: Done() is not closed where the loss is told", name)
			}
		})
	}
}

// The timer of a lease follows its renewals. The heartbeat cannot stand in for it, because it
// waits for the server.
func TestDoneClosesAtTheEndOfTheLatestTrust(t *testing.T) {
	t.Parallel()
	for renewals := range 2 {
		withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
			lease, from := take(t, l), time.Duration(0)
			for len(f.times("extend")) < renewals {
				time.Sleep(TickOf(ttl))
			}
			if renewals > 0 {
				from = f.times("extend")[0]
			}
			f.to("extend", silence)
			<-lease.Done()
			if got, want := time.Since(f.began), from+TrustOf(ttl); got != want {
				t.Errorf("Done() closed after %v, want %v, the end of the trust after %d renewals", got, want, renewals)
			}
		})
	}
}

// A young lease has no timer. A lease that was granted late has one from the start, because the heartbeat may look
// only after the end of its trust.
func TestTimerOfALease(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]bool{0: false, HeartbeatOf(ttl) - 1: false, HeartbeatOf(ttl): true} {
		withFake(t, func(t *testing.T, f *fake, l *Locker, clock *leaseclock.Manual) {
			f.to("acquire", func(context.Context) error { clock.Advance(age); return nil })
			if timed := take(t, l).(*Lease).timer != nil; timed != want {
				t.Errorf("a lease granted at the age of %v has a timer: %t, want %t", age, timed, want)
			}
		})
	}
}

// The answer to a renewal comes after the end of the trust. A holder may have seen that end.
func TestLateRenewalChangesNothing(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, _ *fake, l *Locker, clock *leaseclock.Manual) {
		lease := take(t, l).(*Lease)
		clock.Advance(time.Second)
		early := l.now()
		clock.Advance(time.Second)
		sent := l.now()
		lease.renewal(sent, true)
		lease.renewal(early, true)
		if left := lease.left(); left != TrustOf(ttl) {
			t.Errorf("a lease is trusted for %v after the answer to an earlier renewal, want %v", left, TrustOf(ttl))
		}
		clock.Advance(TrustOf(ttl) / 2)
		sent = l.now()
		clock.Advance(TrustOf(ttl) / 2)
		lease.renewal(sent, true)
		if err := lease.Err(); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Err() after a late renewal = %v, want %v", err, driver.ErrLeaseLost)
		}
	})
}

// Leases that are renewed in one request have an answer each.
func TestEachLeaseHasItsAnswer(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, clock *leaseclock.Manual) {
		leases := []*Lease{take(t, l).(*Lease), take(t, l).(*Lease), take(t, l).(*Lease)}
		clock.Advance(time.Second)
		answers, broken := []error{ErrGone, errors.New("broken"), nil}, errors.New("broken")
		answers[1] = broken
		f.to("extend", func(context.Context) error {
			answer := answers[0]
			answers = answers[1:]
			return answer
		})
		if err := l.renew(t.Context(), leases); !errors.Is(err, broken) {
			t.Errorf("renew() = %v, want %v", err, broken)
		}
		if err := leases[0].Err(); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Err() of a lease whose lock is gone = %v, want %v", err, driver.ErrLeaseLost)
		}
		for i, want := range []time.Duration{1: TrustOf(ttl) - time.Second, 2: TrustOf(ttl)} {
			if left := leases[i].left(); i > 0 && left != want {
				t.Errorf("lease %d is trusted for %v, want %v", i, left, want)
			}
		}
	})
}

// A locker forgets the leases that have ended.
func TestEndedLeasesAreForgotten(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		if err := take(t, l).Release(t.Context()); err != nil {
			t.Errorf("Release() = %v, want <nil>", err)
		}
		take(t, l).ReleaseInBackground()
		take(t, l).(*Lease).Returned()
		f.to("extend", says(ErrGone))
		if left, err := take(t, l).Check(t.Context()); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Check() of a lock that is gone = %v, %v, want %v", left, err, driver.ErrLeaseLost)
		}
		synctest.Wait()
		if n := len(l.held); n != 0 {
			t.Errorf("%d leases are kept, want 0", n)
		}
	})
}
