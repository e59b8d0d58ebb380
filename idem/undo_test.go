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

// held reports whether somebody has the lock of a key of this bundle.
func (b *bundle) held(key string) bool {
	_, held := b.locker.Holder(idem.NewKeyID("m1", idem.Key(key)))
	return held
}

// TestUndoGivesTheLockBack: the store answers nothing for longer than the settle time-out. The lock
// gets free, and the Begin is undone all the same as soon as the store answers.
func TestUndoGivesTheLockBack(t *testing.T) {
	for name, next := range map[string]bool{"and nobody comes": false, "and the next holder leaves doubt": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, parts{})
				b.faults.LoseReply("Begin", 1, nil)
				b.faults.FailBefore("Abort", idemtest.Every, nil)
				b.wantRefusal("k", "a", idem.CodeUnavailable)
				time.Sleep(time.Second)
				if !b.held("k") {
					t.Error("the lock is free within the settle time-out, want it held while the Begin may be undone")
				}
				time.Sleep(2 * time.Second)
				if b.held("k") {
					t.Error("the lock is held after the settle time-out")
				}
				if next {
					b.wantRefusal("k", "a", idem.CodeOutcomeUnknown)
				}
				b.faults.Heal("Abort")
				time.Sleep(20 * time.Second)
				b.wantState("k", driver.StateReleased)
				b.wantEvents(telemetry.EventBeginAborted, 1)
				res, err := b.do("k", "a")
				if err != nil || res.Response.Status != 201 {
					t.Errorf("Do() = %+v, %v, want a payment", res, err)
				}
				b.wantRuns(1)
			})
		})
	}
}

// TestUndoHasABound: nothing grows while a store gives no answers to Begin and Abort.
func TestUndoHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 1024 // maxUndoing
		b := setup(t, parts{})
		b.faults.FailBefore("Begin", idemtest.Every, nil)
		b.faults.FailBefore("Abort", idemtest.Every, nil)
		for n := range most + 100 {
			_, err := b.do(fmt.Sprint(n), "a")
			b.wantRefused(err, idem.CodeUnavailable)
		}
		held := 0
		for n := range most + 100 {
			if b.held(fmt.Sprint(n)) {
				held++
			}
		}
		if held > most {
			t.Errorf("%d locks are held, want at most %d", held, most)
		}
		b.wantEvents(telemetry.EventSettleAbandoned, 100)
		time.Sleep(time.Minute) // of an outage
		calls := b.faults.Calls("Abort")
		time.Sleep(10 * time.Second)
		if calls = b.faults.Calls("Abort") - calls; calls > 2*most {
			t.Errorf("the engine called Abort %d times in 10 s, want at most once in 5 s for each Begin", calls)
		}
		b.faults.Heal("Begin")
		b.faults.Heal("Abort")
		time.Sleep(time.Minute)
		b.wantEvents(telemetry.EventBeginAborted, most)
		b.wantRuns(0)
	})
}

// TestRefusedWriteNeedsNoUndo: the store says that it takes no writes. Nothing is left of the request, and
// the next ones take no lock until it is time to try again.
func TestRefusedWriteNeedsNoUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, parts{})
		full := fmt.Errorf("full: %w: %w", driver.ErrUnavailable, driver.ErrNoWrites)
		b.faults.FailBefore("Begin", idemtest.Every, full)
		b.faults.FailBefore("Abort", idemtest.Every, full)
		for n := range 100 { // one after the other, in a second
			_, err := b.do("k", "a")
			b.wantRefused(err, idem.CodeUnavailable)
			if !errors.Is(err, driver.ErrNoWrites) {
				t.Errorf("refusal %d = %v, want it to tell the reason", n, err)
			}
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			if b.held("k") {
				t.Fatal("the lock is held after the store has refused")
			}
		}
		if n := b.locks.Calls("TryAcquire"); n != 10 {
			t.Errorf("%d requests took the lock, want one in 100 ms", n)
		}
		if n := b.faults.Calls("Abort"); n != 0 {
			t.Errorf("Abort was called %d times, want 0", n)
		}
		res, err := b.engine.Do(t.Context(), b.operationOfAnotherPart("k"), b.pay)
		_ = res
		b.wantRefused(err, idem.CodeUnavailable)
		if n := b.locks.Calls("TryAcquire"); n != 11 {
			t.Error("a refusal closes another part of the store too")
		}
		b.faults.Heal("Begin")
		time.Sleep(100 * time.Millisecond)
		b.wantPayment("k", "a", 1, false)
	})
}

// operationOfAnotherPart is an operation whose key lies in another part of the store.
func (b *bundle) operationOfAnotherPart(key string) idem.Operation {
	part := func(k idem.Key) int { id := idem.NewKeyID("m1", k); return int(id[0]) % 64 }
	for n := 0; ; n++ {
		if k := idem.Key(fmt.Sprint(n)); part(k) != part(idem.Key(key)) {
			return b.operation(string(k), "a")
		}
	}
}

// TestRefusedCopyOfABeginThatWasApplied: a client library has sent the Begin twice. The answer to the first
// copy was lost, and the second one was refused.
func TestRefusedCopyOfABeginThatWasApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, parts{})
		b.faults.LoseReply("Begin", 1, fmt.Errorf("full: %w: %w", driver.ErrUnavailable, driver.ErrNoWrites))
		b.wantRefusal("k", "a", idem.CodeUnavailable)
		synctest.Wait()
		b.wantState("k", driver.StateReleased)
		if b.held("k") {
			t.Error("the lock is left")
		}
	})
}

// TestRefusedWriteWhoseTraceCannotBeRead: the look for an earlier copy fails, so the Begin is undone.
func TestRefusedWriteWhoseTraceCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, parts{})
		b.faults.LoseReply("Begin", 1, fmt.Errorf("full: %w: %w", driver.ErrUnavailable, driver.ErrNoWrites))
		b.faults.FailBefore("Get", 2, nil)
		b.wantRefusal("k", "a", idem.CodeUnavailable)
		synctest.Wait()
		b.wantState("k", driver.StateReleased)
	})
}

// TestRefusedWriteFailsOpen: the route would rather run twice than not at all.
func TestRefusedWriteFailsOpen(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.FailOpen = true }})
	b.faults.FailBefore("Begin", idemtest.Every, fmt.Errorf("full: %w: %w", driver.ErrUnavailable, driver.ErrNoWrites))
	for n := range 3 {
		res, err := b.do(fmt.Sprint(n), "a")
		b.wantPaid(res, err, n+1, false)
	}
}

// TestRefusedWritesLeaveOpenAttemptsAlone: a duplicate of a running request is told that, also while the
// store takes no new attempts.
func TestRefusedWritesLeaveOpenAttemptsAlone(t *testing.T) {
	b := setup(t, parts{})
	finish := b.started("k", "a", b.pay)
	other := b.another(b.locks, b.faults)
	b.faults.FailBefore("Begin", idemtest.Every, fmt.Errorf("full: %w: %w", driver.ErrUnavailable, driver.ErrNoWrites))
	for n := range 200 {
		_, err := other.Do(t.Context(), b.operation(fmt.Sprint(n), "a"), b.pay)
		b.wantRefused(err, idem.CodeUnavailable)
	}
	b.wantRefusalBy(other, b.operation("k", "a"), idem.CodeInProgress)
	res, err := finish()
	b.wantPaid(res, err, 1, false)
}

func TestUnansweredBegin(t *testing.T) {
	t.Run("applied: undone, and the next request is attempt 1", func(t *testing.T) {
		b := setup(t, parts{})
		b.faults.LoseReply("Begin", 1, nil)
		b.wantRefusal("k", "a", idem.CodeUnavailable)
		b.wantRuns(0)
		b.wantUndone("k")
		res, err := b.do("k", "b") // nothing happened: another request may have the key
		b.wantPaid(res, err, 1, false)
		if res.Attempt != 1 {
			t.Errorf("attempt = %d, want 1: none has started", res.Attempt)
		}
	})
	t.Run("not applied: refused should it still arrive", func(t *testing.T) {
		b := setup(t, parts{})
		late := b.faults.DeliverLate("Begin", 1, nil)
		b.wantRefusal("k", "a", idem.CodeUnavailable)
		b.wantUndone("k")
		if err := late.Deliver(); !errors.Is(err, driver.ErrStaleFence) {
			t.Errorf("late Begin = %v, want %v", err, driver.ErrStaleFence)
		}
		b.wantPayment("k", "a", 1, false)
	})
	t.Run("a token is as it was", func(t *testing.T) {
		b := setup(t, parts{policy: func(p *idem.Policy) { p.IssuedTokens = true }})
		token, _ := b.engine.IssueToken(context.Background(), "m1", time.Hour)
		b.faults.LoseReply("Begin", 1, nil)
		_, err := b.do(string(token.Value), "a")
		b.wantRefused(err, idem.CodeUnavailable)
		b.wantUndone(string(token.Value))
		b.wantState(string(token.Value), driver.StateIssued)
		res, err := b.do(string(token.Value), "a")
		b.wantPaid(res, err, 1, false)
	})
}

func TestLeaseLostDuringBeginRunsNothing(t *testing.T) {
	b := setup(t, parts{opts: unhurried})
	slow := b.faults.Slow("Begin", 1)
	done := make(chan error)
	go func() {
		_, err := b.do("k", "a")
		done <- err
	}()
	<-slow.Arrived()
	b.locker.Revoke(idem.NewKeyID("m1", "k"))
	slow.Release()
	b.wantRefused(<-done, idem.CodeOwnershipLost)
	b.wantUndone("k")
	b.wantRuns(0)
	b.wantPayment("k", "a", 1, false)
}
