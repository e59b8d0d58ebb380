package idem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// TestRoundTrips: a fresh key costs the store three and the lock service two
// calls, a replay one and none.
func TestRoundTrips(t *testing.T) {
	b := setup(t, parts{})
	want := func(what string, get, begin, settle, abort, acquire, release int) {
		t.Helper()
		got := []int{b.faults.Calls("Get"), b.faults.Calls("Begin"), b.faults.Calls("Settle"), b.faults.Calls("Abort"),
			b.locks.Calls("TryAcquire"), b.locks.Calls("Lease.Release") + b.locks.Calls("Lease.ReleaseInBackground")}
		if fmt.Sprint(got) != fmt.Sprint([]int{get, begin, settle, abort, acquire, release}) {
			t.Errorf("%s: Get, Begin, Settle, Abort, TryAcquire, Release called %v times, want %v", what, got,
				[]int{get, begin, settle, abort, acquire, release})
		}
	}
	_, _ = b.do("k", "a")
	want("fresh key", 1, 1, 1, 0, 1, 1)
	_, _ = b.do("k", "a")
	want("replay", 2, 1, 1, 0, 1, 1)
	_, _ = b.do("k", "b")
	want("mismatch", 3, 1, 1, 0, 1, 1)
	b.policy.IssuedTokens = true
	_, _ = b.do("junk", "a")
	want("junk token", 4, 1, 1, 0, 1, 1)
	if n := b.locks.Calls("Wait") + b.locks.Calls("Lease.Check"); n != 0 {
		t.Errorf("lock service was asked %d times more", n)
	}
}

// A store or a lock that is away refuses at once, and one that hangs after its time-out. Afterwards the key works.
// A replay needs no lock.
func TestStoreOrLockThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, parts{opts: []idem.Option{idem.WithStoreTimeout(7 * time.Second), idem.WithLockTimeout(9 * time.Second)}})
		for _, tt := range []struct {
			fault func()
			want  time.Duration
		}{
			{func() { b.faults.FailBefore("Get", b.faults.Calls("Get")+1, nil) }, 0},
			{func() { b.locks.FailBefore("TryAcquire", b.locks.Calls("TryAcquire")+1, nil) }, 0},
			{func() { b.faults.Slow("Get", b.faults.Calls("Get")+1) }, 7 * time.Second},
			{func() { b.locks.Slow("TryAcquire", b.locks.Calls("TryAcquire")+1) }, 9 * time.Second},
		} {
			tt.fault()
			started := time.Now()
			b.wantRefusal("k", "a", idem.CodeUnavailable)
			if took := time.Since(started); took != tt.want {
				t.Errorf("refused after %v, want %v", took, tt.want)
			}
		}
		b.wantPayment("k", "a", 1, false)
		b.locks.FailBefore("TryAcquire", idemtest.Every, nil)
		b.wantPayment("k", "a", 1, true)
	})
}

// A locker need not tell operators anything.
func TestLockerThatTellsNothing(t *testing.T) {
	b := setup(t, parts{})
	id := idem.NewKeyID("m1", "k")
	_, held, heldErr := b.engine.HeldBy(t.Context(), id)
	domain, domainErr := b.engine.DomainOf(t.Context(), id)
	if held || domain != "" || !errors.Is(heldErr, errors.ErrUnsupported) || !errors.Is(domainErr, errors.ErrUnsupported) {
		t.Errorf("HeldBy() = %t, %v and DomainOf() = %q, %v, want %v", held, heldErr, domain, domainErr, errors.ErrUnsupported)
	}
}

func TestStoreLostRefuses(t *testing.T) {
	for _, method := range []string{"Get", "Begin"} {
		t.Run(method, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { p.FailOpen = true }})
			b.faults.FailBefore(method, 1, fmt.Errorf("wrapped: %w", driver.ErrStoreLost))
			b.wantRefusal("k", "a", idem.CodeStoreLost)
			b.wantRuns(0)
			res, err := b.do("k", "a")
			b.wantPaid(res, err, 1, false) // and the lock was given back
		})
	}
}

// TestSettledByOthersFreesTheLock: people decided about the attempt under its holder.
func TestSettledByOthersFreesTheLock(t *testing.T) {
	b := setup(t, parts{})
	res, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		rec, err := b.store.Get(ctx, idem.NewKeyID("m1", "k"))
		if err == nil {
			_, err = b.store.Settle(ctx, idem.NewKeyID("m1", "k"), driver.Settlement{Attempt: rec.Attempt, ID: driver.NewNonce(), State: driver.StateReleased, KeyTTL: time.Hour})
		}
		if err != nil {
			t.Error(err)
		}
		return b.pay(ctx)
	})
	b.wantPaid(res, err, 1, false)
	b.wantFree("k")
}

func TestUnansweredSettleIsSentAgain(t *testing.T) {
	for name, fault := range map[string]func(*bundle){
		"applied":     func(b *bundle) { b.faults.LoseReply("Settle", 1, nil) },
		"not applied": func(b *bundle) { b.faults.FailBefore("Settle", 1, nil) },
		"late":        func(b *bundle) { b.faults.DeliverLate("Settle", 1, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{})
			fault(b)
			b.wantPayment("k", "a", 1, false)
			b.wantPayment("k", "a", 1, true)
			b.wantRuns(1)
		})
	}
}

func TestSaveThatFailsGoesOnBehindTheAnswer(t *testing.T) {
	b := setup(t, parts{opts: []idem.Option{idem.WithSettleTimeout(time.Millisecond)}})
	b.faults.FailBefore("Settle", idemtest.Every, nil)
	b.wantPayment("k", "a", 1, false)
	b.wantEvents(telemetry.EventSettleDelayed, 1)
	b.wantRefusal("k", "a", idem.CodeInProgress)
	_, err := b.locker.TryAcquire(context.Background(), driver.LockRequest{KeyID: idem.NewKeyID("m1", "k"), Nonce: driver.NewNonce()})
	if !errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() = %v while saving, want %v", err, driver.ErrLocked)
	}
	b.faults.Heal("Settle")
	b.eventually("it is saved", func() bool { return b.saw(telemetry.EventCompleted) == 1 })
	res, err := b.doWhenFree("k", "a")
	b.wantPaid(res, err, 1, true)
	b.wantRuns(1)
}

// TestSuccessOfALostLeaseIsNotAnsweredUnsaved: another holder may be deciding about it.
func TestSuccessOfALostLeaseIsNotAnsweredUnsaved(t *testing.T) {
	b := setup(t, parts{opts: []idem.Option{idem.WithSettleTimeout(time.Millisecond)}})
	b.faults.FailBefore("Settle", idemtest.Every, nil)
	_, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		b.locker.Revoke(idem.NewKeyID("m1", "k"))
		return b.pay(ctx)
	})
	b.wantRefused(err, idem.CodeOwnershipLost)
	b.faults.Heal("Settle")
	b.eventually("it is saved", func() bool { return b.saw(telemetry.EventCompleted) == 1 })
	res, err := b.doWhenFree("k", "a")
	b.wantPaid(res, err, 1, true)
}

// TestLockIsHeldUntilDoubtIsStored: the next holder would find the attempt pending.
func TestLockIsHeldUntilDoubtIsStored(t *testing.T) {
	b := setup(t, parts{opts: []idem.Option{idem.WithSettleTimeout(time.Millisecond)}})
	b.faults.FailBefore("Settle", idemtest.Every, nil)
	b.wantAnswer("k", "a", 500)
	if !b.held("k") {
		t.Error("the lock is free, and the outcome is not stored")
	}
	b.faults.Heal("Settle")
	b.eventually("it is saved", func() bool { return b.saw(telemetry.EventUnknown) == 1 })
}

// TestErrorOfALostLease: the client is told of the loss, and the log of both.
func TestErrorOfALostLease(t *testing.T) {
	b := setup(t, parts{})
	boom := errors.New("boom")
	_, err := b.doWith("k", "a", func(context.Context) (idem.Response, error) {
		b.locker.Revoke(idem.NewKeyID("m1", "k"))
		return idem.Response{}, boom
	})
	b.wantRefused(err, idem.CodeOwnershipLost)
	if !errors.Is(err, boom) {
		t.Errorf("Do() = %v, want one that wraps %v", err, boom)
	}
}

// forget makes the store lose a running request's record.
func (b *bundle) forget(key string) {
	b.Helper()
	ctx := context.Background()
	id := idem.NewKeyID("m1", idem.Key(key))
	rec, err := b.store.Get(ctx, id)
	if err != nil || rec.State != driver.StatePending {
		b.Fatalf("Get() = %v, %v", rec.State, err)
	}
	// Released, and its time is over.
	got, err := b.store.Settle(ctx, id, driver.Settlement{Attempt: rec.Attempt, ID: driver.NewNonce(), State: driver.StateReleased, KeyTTL: 1})
	if err != nil || !got.Settled {
		b.Fatalf("Settle() = %v, %v", got, err)
	}
	b.advance(time.Until(got.Record.KeyExpires))
	if rec, err := b.store.Get(ctx, id); err != nil || rec.State != driver.StateNone {
		b.Fatalf("Get() = %v, %v, want %v", rec.State, err, driver.StateNone)
	}
}

// TestObserverPanicLeavesNoLockBehind also covers a fingerprinter's.
func TestObserverPanicLeavesNoLockBehind(t *testing.T) {
	b := setup(t, parts{opts: []idem.Option{idem.WithObserver(func(context.Context, telemetry.Event) { panic("boom") })}})
	b.wantPayment("k", "a", 1, false)
	b.wantAnswer("k2", "a", 429)
	b.wantPayment("k2", "a", 2, false)
}

func TestResponseThatCannotBeStoredIsOmitted(t *testing.T) {
	for name, opts := range map[string][]idem.Option{
		"at once": nil,
		"behind":  {idem.WithSettleTimeout(time.Nanosecond)},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{opts: opts})
			b.faults.FailBefore("Settle", 1, nil)
			b.faults.FailBefore("Settle", 2, fmt.Errorf("wrapped: %w", driver.ErrResponseInvalid))
			b.wantPayment("k", "a", 1, false)
			b.eventually("it is settled", func() bool { return b.saw(telemetry.EventCompleted) == 1 })
			_, err := b.doWhenFree("k", "a")
			b.wantRefused(err, idem.CodeResultUnavailable)
		})
	}
}
