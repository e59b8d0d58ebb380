package idem_test

import (
	"context"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// unanswered sends a request whose nth Begin takes effect without an answer, and whose lock is
// lost before an Abort succeeds. Aborts fail until the test heals them.
func (b *bundle) unanswered(key string, nth int) {
	b.Helper()
	b.faults.LoseReply("Begin", b.faults.Calls("Begin")+nth, nil)
	b.faults.FailBefore("Abort", idemtest.Every, nil)
	b.wantRefusal(key, "a", idem.CodeUnavailable)
	if !b.locker.Revoke(idem.NewKeyID("m1", idem.Key(key))) {
		b.Fatal("the lock is free, want it held until the Begin is undone")
	}
	failed := b.faults.Calls("Abort")
	b.eventually("an Abort fails after the loss", func() bool { return b.faults.Calls("Abort") > failed+1 || b.saw(telemetry.EventBeginAborted) > 0 })
	if b.saw(telemetry.EventBeginAborted) > 0 {
		b.Error("the Begin counts as undone after an Abort that failed")
	}
}

// abort heals Abort and waits until the Begin is undone.
func (b *bundle) abort(key string) {
	b.Helper()
	b.faults.Heal("Abort")
	b.wantUndone(key)
}

// wantUndone waits until a Begin is undone. The engine reports it first, and gives the lock back then.
func (b *bundle) wantUndone(key string) {
	b.Helper()
	b.eventually("the Begin is undone", func() bool { return b.saw(telemetry.EventBeginAborted) == 1 })
	b.wantFree(key)
}

// TestAbortLeavesTheDoubtOfTheNextHolder: nothing ran under the aborted attempt, but its
// successor has run.
func TestAbortLeavesTheDoubtOfTheNextHolder(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) {
		verdict := idem.NotApplied() // of the attempt that never ran
		p.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			defer func() { verdict = idem.StillUnknown() }()
			return verdict, nil
		})
	}})
	b.unanswered("k", 1)
	res, err := b.doWith("k", "a", answers(500))
	if err != nil || res.Attempt != 2 {
		t.Fatalf("Do() = %+v, %v, want attempt 2", res, err)
	}
	b.abort("k")
	b.wantState("k", driver.StateUnknown)
}

// TestAbortOfARerunLeavesTheEarlierDoubt: nothing ran under the aborted attempt, but the one
// that it started from is in doubt.
func TestAbortOfARerunLeavesTheEarlierDoubt(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = idem.RunAgain() }})
	b.interrupted("k", "a")
	b.unanswered("k", 2) // the first Begin finds the attempt in doubt, the second starts over
	b.policy.InDoubt = idem.AskResolver(nil)
	_, err := b.do("k", "a") // the next holder gives up
	b.wantRefused(err, idem.CodeOutcomeUnknown)
	b.abort("k")
	b.wantState("k", driver.StateUnknown)
	b.wantRuns(0)
}

// TestAbortAfterTheNextHolderGaveUp: the next holder finds the attempt interrupted, and has no resolver. Who sent
// the Begin knows that nothing ran. The store may fail between the Abort and the release.
func TestAbortAfterTheNextHolderGaveUp(t *testing.T) {
	for _, fails := range []string{"", "Get", "Settle"} {
		t.Run("with a failure of "+fails, func(t *testing.T) {
			b := setup(t, parts{})
			b.unanswered("k", 1)
			b.wantRefusal("k", "a", idem.CodeOutcomeUnknown)
			if fails != "" {
				b.faults.FailBefore(fails, b.faults.Calls(fails)+1, nil)
			}
			b.abort("k")
			b.wantState("k", driver.StateReleased)
			b.wantPayment("k", "a", 1, false)
		})
	}
}

// TestAbortReleasesAnAttemptWhoseLockGoesMeanwhile: the lock is lost, and the next holder marks
// the attempt as unknown, while the Abort is on its way.
func TestAbortReleasesAnAttemptWhoseLockGoesMeanwhile(t *testing.T) {
	b := setup(t, parts{})
	b.faults.LoseReply("Begin", 1, nil)
	b.faults.Before("Abort", 1, func() error {
		b.locker.Revoke(idem.NewKeyID("m1", "k"))
		b.wantRefusalBy(b.another(b.locker, b.store), b.operation("k", "a"), idem.CodeOutcomeUnknown)
		return nil
	})
	b.wantRefusal("k", "a", idem.CodeUnavailable)
	b.wantUndone("k")
	b.wantState("k", driver.StateReleased)
	b.wantRuns(0)
}

// TestStaleFenceNeedsNoAbort: the store has refused the Begin, so there is nothing to undo.
func TestStaleFenceNeedsNoAbort(t *testing.T) {
	b := setup(t, parts{})
	domain := b.interrupted("probe", "a").Fence.Domain
	err := b.store.Abort(t.Context(), idem.NewKeyID("m1", "k"), driver.BeginRequest{Kind: b.kind(),
		Fence: driver.Fence{Domain: domain, Token: 1 << 62}, Nonce: driver.NewNonce(), KeyTTL: idem.DefaultKeyTTL})
	if err != nil {
		t.Fatal(err)
	}
	b.wantRefusal("k", "a", idem.CodeOwnershipLost)
	b.wantRuns(0)
	if n := b.faults.Calls("Abort"); n != 0 {
		t.Errorf("Abort was called %d times, want 0", n)
	}
	if b.held("k") {
		t.Error("the lock is left")
	}
}
