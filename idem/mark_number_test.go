package idem_test

import (
	"context"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// numberTwice is a key with two attempts of number 1. The first one was undone before it left a
// marker, and the second one left one. earlier is the store as it was before both of that.
type numberTwice struct {
	*markedBundle
	id      driver.KeyID
	undone  driver.Attempt
	earlier *memorystore.Store
	outer   *idemtest.FaultyStore // in front of inner, and that in front of the store
	inner   *idemtest.FaultyStore
	second  *idem.Engine // on outer
}

func setupNumberTwice(t *testing.T, want driver.State, policy func(*idem.Policy)) *numberTwice {
	t.Helper()
	b := &numberTwice{markedBundle: setupMarked(t, policy), id: idem.NewKeyID("m1", "k")}
	b.undone = b.interrupted("k", "a")
	b.earlier = b.lossy.now.Load()
	b.wipe()
	undo := driver.BeginRequest{Kind: b.kind(), Fence: b.undone.Fence, Nonce: b.undone.Nonce}
	if err := b.store.Abort(t.Context(), b.id, undo); err != nil {
		t.Fatal(err)
	}
	if want == driver.StateCompleted {
		b.wantPayment("k", "a", 1, false)
	} else {
		_, _ = b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
			_, _ = b.pay(ctx)
			return idem.Response{}, errDown
		})
	}
	b.wantMarker("k", want)
	if m := b.marks.marker(b.id); m.Attempt.Number != b.undone.Number || !b.undone.Fence.Before(m.Attempt.Fence) {
		t.Fatalf("the marker is of attempt %+v, want number %d again under a later fence than %v", m.Attempt, b.undone.Number, b.undone.Fence)
	}
	b.inner = idemtest.NewFaultyStore(b.lossy)
	b.outer = idemtest.NewFaultyStore(b.inner)
	b.second = b.another(b.marks, b.outer, idem.WithObserver(b.observe))
	return b
}

// fallBack promotes a replica that has the undone attempt as pending.
func (b *numberTwice) fallBack() { b.lossy.now.Store(b.earlier) }

// release is the late decision of the holder after the undone attempt that it had no effect.
func (b *numberTwice) release() {
	b.Helper()
	res, err := b.lossy.Settle(b.Context(), b.id, driver.Settlement{Attempt: b.undone, ID: driver.NewNonce(), State: driver.StateReleased, KeyTTL: idem.DefaultKeyTTL})
	if err != nil || !res.Settled {
		b.Fatalf("Settle() of the undone attempt = %+v, %v", res, err)
	}
}

// TestStoreFallsBackToAnAttemptWithTheMarkedNumber: the store has another attempt with the number
// of the marked one, and a late decision releases that. The marked attempt has paid, and the next
// one must not run.
func TestStoreFallsBackToAnAttemptWithTheMarkedNumber(t *testing.T) {
	for name, fail := range map[string]func(b *numberTwice){
		"released while the marker settles it": func(b *numberTwice) {
			b.fallBack()
			b.inner.Before("Settle", 2, func() error { b.release(); return nil })
			b.inner.Before("Begin", 1, func() error {
				if b.inner.Calls("Settle") < 2 { // an attempt in doubt is not settled
					b.release()
				}
				return nil
			})
		},
		"released before Begin": func(b *numberTwice) {
			b.wipe() // the request does not find the answer
			b.inner.Before("Begin", 1, func() error { b.fallBack(); b.release(); return nil })
		},
		"and the answer of Begin is lost": func(b *numberTwice) {
			b.wipe()
			b.inner.Before("Begin", 1, func() error { b.fallBack(); b.release(); return nil })
			b.outer.LoseReply("Begin", 1, nil)
		},
		"and Begin is lost": func(b *numberTwice) {
			b.wipe()
			b.inner.Before("Begin", 1, func() error { b.fallBack(); b.release(); return errDown })
		},
		"and the lease is lost": func(b *numberTwice) {
			b.wipe()
			b.inner.Before("Begin", 1, func() error { b.fallBack(); b.release(); b.locker.Revoke(b.id); return nil })
		},
	} {
		for _, marked := range []driver.State{driver.StateCompleted, driver.StateUnknown} {
			t.Run(name+", marker "+marked.String(), func(t *testing.T) {
				b := setupNumberTwice(t, marked, nil)
				fail(b)
				if _, err := b.second.Do(t.Context(), b.operation("k", "a"), b.pay); err == nil {
					t.Error("Do() = <nil>, want a refusal")
				}
				want := idem.CodeResultUnavailable
				if marked == driver.StateUnknown {
					want = idem.CodeOutcomeUnknown
				}
				b.eventually("refusal "+string(want), func() bool {
					_, err := b.do("k", "a")
					return refusedAs(err, want)
				})
				b.wantRuns(1)
				b.wantMarker("k", marked)
			})
		}
	}
}

// TestLateAbortUnderAMarkerReleasesNothing: the attempt began from an old record, its holder lost
// the lease, and the next holder has left it in doubt.
func TestLateAbortUnderAMarkerReleasesNothing(t *testing.T) {
	b := setupNumberTwice(t, driver.StateUnknown, nil)
	b.wipe()
	b.inner.Before("Begin", 1, func() error { b.fallBack(); b.release(); b.locker.Revoke(b.id); return nil })
	b.inner.FailBefore("Abort", idemtest.Every, nil)
	_, err := b.second.Do(t.Context(), b.operation("k", "a"), b.pay)
	b.wantRefused(err, idem.CodeOwnershipLost)
	b.wantRefusal("k", "a", idem.CodeOutcomeUnknown)
	b.inner.Heal("Abort")
	b.eventually("the abort", func() bool { return b.saw(telemetry.EventBeginAborted) == 1 })
	b.wantRefusal("k", "a", idem.CodeOutcomeUnknown)
	b.wantRuns(1)
}

// TestCompletedMarkerBeatsALaterAttemptInDoubt: the Abort on a route that runs again leaves an
// attempt in doubt whose number and fence are above those of the marker.
func TestCompletedMarkerBeatsALaterAttemptInDoubt(t *testing.T) {
	for name, lost := range map[string]bool{"": false, ", and the answer of Begin is lost": true} {
		t.Run("the store falls back before Begin"+name, func(t *testing.T) {
			b := setupNumberTwice(t, driver.StateCompleted, func(p *idem.Policy) { p.InDoubt = idem.RunAgain() })
			b.wipe()
			b.inner.Before("Begin", 1, func() error { b.fallBack(); return nil })
			if lost {
				b.outer.LoseReply("Begin", 2, nil) // the one that starts from the old attempt
			}
			_, err := b.second.Do(t.Context(), b.operation("k", "a"), b.pay)
			b.wantRefused(err, idem.CodeUnavailable)
			_, err = b.doWhenFree("k", "a")
			b.wantRefused(err, idem.CodeResultUnavailable)
			b.wantRuns(1)
		})
	}
}

// TestDecisionOutlivesAnUnansweredBegin: people decided without the lock, so the marker still
// says unknown. The Abort of the next request leaves its fence in the released record, and the
// decision counts all the same.
func TestDecisionOutlivesAnUnansweredBegin(t *testing.T) {
	b := setupMarked(t, nil)
	b.wantAnswer("k", "a", 500)
	b.wantMarker("k", driver.StateUnknown)
	id := idem.NewKeyID("m1", "k")
	if _, err := b.store.Settle(t.Context(), id, driver.Settlement{Attempt: b.marks.marker(id).Attempt, ID: driver.NewNonce(), State: driver.StateReleased, KeyTTL: idem.DefaultKeyTTL}); err != nil {
		t.Fatal(err)
	}
	h := b.beforeBegin(func() error { return errDown })
	b.wantRefusalBy(b.another(b.marks, h, idem.WithObserver(b.observe)), b.operation("k", "a"), idem.CodeUnavailable)
	b.wantMarker("k", driver.StateNone)
	b.eventually("payment", func() bool {
		res, err := b.do("k", "a")
		return err == nil && !res.Replayed
	})
	b.wantRuns(1)
}
