package idem_test

import (
	"cmp"
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// TestStoreThatFallsBackUnderAHolder: what the holder knows, and has told its
// client, goes before what the store has become.
func TestStoreThatFallsBackUnderAHolder(t *testing.T) {
	earlier := driver.Fence{Domain: "x", Token: 1}
	for name, fall := range map[string]func(b *markedBundle){
		"issued token again":       func(b *markedBundle) { b.issue("k") },
		"earlier released attempt": func(b *markedBundle) { b.storeAttempt(earlier, driver.NewNonce(), driver.StateReleased) },
		"earlier open attempt, route that runs again in doubt": func(b *markedBundle) {
			b.policy.InDoubt = idem.RunAgain()
			b.storeAttempt(driver.Fence{Domain: b.domain(), Token: 1}, driver.NewNonce(), driver.StatePending)
		},
		"wiped, then the late abort of an earlier holder": func(b *markedBundle) {
			if err := b.store.Abort(b.Context(), idem.NewKeyID("m1", "k"), driver.BeginRequest{Kind: b.kind(), Fence: earlier, Nonce: driver.NewNonce()}); err != nil {
				b.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupMarked(t, func(p *idem.Policy) { p.IssuedTokens = name == "issued token again" })
			if b.policy.IssuedTokens {
				b.issue("k")
			}
			res, err := b.doWith("k", "a", func(c context.Context) (idem.Response, error) {
				b.wipe()
				fall(b)
				return b.pay(c)
			})
			b.wantPaid(res, err, 1, false) // the client was told of the payment
			res, err = b.do("k", "a")
			if b.wantRuns(1); err == nil && !res.Replayed {
				t.Error("the repeat got an answer of its own, want a refusal or a replay")
			}
		})
	}
}

func (b *markedBundle) domain() string {
	l := b.hold("other")
	defer l.ReleaseInBackground()
	return l.Fence().Domain
}

// beforeBegin returns the store of b with a call of fn before its first Begin.
func (b *markedBundle) beforeBegin(fn func() error) driver.Store {
	s := idemtest.NewFaultyStore(b.lossy)
	s.Before("Begin", 1, fn)
	return s
}

// TestFallbackBetweenMarkerAndBegin: the store falls back to an earlier attempt in
// doubt after its record was compared with the marker, which stays as it is.
func TestFallbackBetweenMarkerAndBegin(t *testing.T) {
	b := setupMarked(t, nil)
	_, _ = b.doWith("k", "a", func(context.Context) (idem.Response, error) { return idem.Response{}, errDown })
	b.wantMarker("k", driver.StateUnknown)
	id := idem.NewKeyID("m1", "k")
	earlier, first := b.lossy.now.Load(), b.marks.marker(id)
	later := *first
	later.State, later.Attempt = driver.StateCompleted, driver.Attempt{Number: 2, Fence: first.Attempt.Fence, Nonce: driver.NewNonce()}
	later.Attempt.Fence.Token++
	b.marks.markers[id] = &later
	b.wipe()
	h := b.beforeBegin(func() error { b.lossy.now.Store(earlier); return nil })
	b.wantRefusalBy(b.another(b.marks, h), b.operation("k", "a"), idem.CodeOutcomeUnknown)
	if m := b.marks.marker(id); m.State != driver.StateCompleted || m.Attempt != later.Attempt {
		t.Errorf("marker = %v of attempt %d, want %v of attempt 2", m.State, m.Attempt.Number, driver.StateCompleted)
	}
}

// TestLossBetweenMarkerAndBegin: what was read under the marker is gone when the
// attempt begins.
func TestLossBetweenMarkerAndBegin(t *testing.T) {
	b := setupMarked(t, nil)
	b.wantPayment("k", "a", 1, false)
	b.wantMarker("k", driver.StateCompleted)
	b.wipe()
	h := b.beforeBegin(func() error { b.wipe(); return nil })
	b.wantRefusalBy(b.another(b.marks, h), b.operation("k", "a"), idem.CodeUnavailable)
	b.wantRuns(1)
}

// TestNothingBeginsUnderAMarkerThatCannotBeCompared: the record cannot be read under the lock.
func TestNothingBeginsUnderAMarkerThatCannotBeCompared(t *testing.T) {
	b := setupMarked(t, nil)
	b.wantPayment("k", "a", 1, false)
	b.wantMarker("k", driver.StateCompleted)
	b.wipe()
	store := idemtest.NewFaultyStore(b.lossy)
	store.FailBefore("Get", 2, nil)
	b.wantRefusalBy(b.another(b.marks, store), b.operation("k", "a"), idem.CodeUnavailable)
	if n := store.Calls("Begin"); n != 0 {
		t.Errorf("Begin was called %d times, want 0", n)
	}
	b.wantRuns(1)
}

// TestLossWhileARepeatTakesTheLock: the repeat read "pending", got the lock as the
// first gave it back, read "completed" under it, and then all is lost.
func TestLossWhileARepeatTakesTheLock(t *testing.T) {
	b := setupMarked(t, nil)
	finish := b.started("k", "a", b.pay)
	h := b.beforeBegin(func() error { b.wipe(); return nil })
	l := idemtest.NewFaultyLocker(b.marks)
	l.Before("TryAcquire", 1, func() error {
		res, err := finish()
		b.wantPaid(res, err, 1, false)
		b.wantMarker("k", driver.StateCompleted)
		return nil
	})
	b.wantRefusalBy(b.another(l, h), b.operation("k", "a"), idem.CodeUnavailable)
	b.wantRuns(1)
}

// TestAbortedBeginDoesNotOutrankAMarker: the store dies under the Begin of a
// repeat and comes back empty; the abort leaves a released record with a later
// fence than the marker's.
func TestAbortedBeginDoesNotOutrankAMarker(t *testing.T) {
	b := setupMarked(t, nil)
	b.wantPayment("k", "a", 1, false)
	b.wantMarker("k", driver.StateCompleted)
	b.wipe()
	h := b.beforeBegin(func() error { b.wipe(); return errDown })
	b.wantRefusalBy(b.another(b.marks, h, idem.WithObserver(b.observe)), b.operation("k", "a"), idem.CodeUnavailable)
	b.eventually("abort", func() bool { return b.saw(telemetry.EventBeginAborted) > 0 })
	_, err := b.doWhenFree("k", "a")
	b.wantRefused(err, idem.CodeResultUnavailable)
	b.wantRuns(1)
}

// TestAbortedBeginDoesNotHideAnAttemptInDoubt: as before, and the marked attempt is in doubt.
// It can still be settled, by a resolver and by an operator. The Begin may be of an earlier domain,
// whose holders have not noticed yet that their lock service was rebuilt.
func TestAbortedBeginDoesNotHideAnAttemptInDoubt(t *testing.T) {
	id := idem.NewKeyID("m1", "k")
	ask := func(r idem.Resolution) func(b *markedBundle) error {
		return func(b *markedBundle) error {
			b.policy.InDoubt = resolverSays(r)
			_, err := b.do("k", "a")
			return err
		}
	}
	for name, tt := range map[string]struct {
		settle        func(b *markedBundle) error
		payment, runs int
	}{
		"resolver":              {ask(idem.Applied(created(70))), 70, 0},
		"resolver, not applied": {ask(idem.NotApplied()), 1, 1},
		"operator": {func(b *markedBundle) error {
			_, err := b.engine.Decide(t.Context(), id, driver.Attempt{}, idem.Applied(created(70)), driver.Decision{By: "ops"}, &b.policy)
			return err
		}, 70, 0},
	} {
		for domain, aborted := range map[string]string{"the domain": "", "another domain": "elsewhere"} {
			t.Run(name+"/"+domain, func(t *testing.T) {
				b := setupMarked(t, nil)
				b.wantAnswer("k", "a", 500)
				b.wantMarker("k", driver.StateUnknown)
				own := b.domain() // its fence is above that of the marker
				b.wipe()
				late := driver.BeginRequest{Fence: driver.Fence{Domain: cmp.Or(aborted, own), Token: b.marks.marker(id).Attempt.Fence.Token + 1}, Nonce: driver.NewNonce()}
				if err := b.lossy.Abort(t.Context(), id, late); err != nil {
					t.Fatal(err)
				}
				broken := idemtest.NewFaultyStore(b.lossy)
				broken.FailBefore("Settle", 2, nil) // the attempt is not written anew
				b.wantRefusalBy(b.another(b.marks, broken), b.operation("k", "a"), idem.CodeUnavailable)
				if err := tt.settle(b); !errors.Is(err, driver.ErrUnavailable) {
					t.Fatalf("the first call = %v, want %v", err, driver.ErrUnavailable)
				}
				b.wantMarker("k", driver.StateUnknown)
				if err := tt.settle(b); err != nil {
					t.Fatalf("the second call = %v, want <nil>", err)
				}
				b.wantMarker("k", driver.StateCompleted)
				b.wantPayment("k", "a", tt.payment, true)
				b.wantRuns(int64(tt.runs))
			})
		}
	}
}

// TestLaterMarkerIsLeftAlone: an attempt that ended in doubt asks its resolver
// when another instance has settled it, and run the next one.
func TestLaterMarkerIsLeftAlone(t *testing.T) {
	verdict := idem.NotApplied()
	b := setupMarked(t, func(p *idem.Policy) {
		p.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) { return verdict, nil })
	})
	l := idemtest.NewFaultyLocker(b.marks)
	l.Before("TryAcquire", 2, func() error { // the call of inDoubt
		// Another instance is faster: not applied, runs attempt 2, completes, marks.
		b.wantPayment("k", "a", 1, false)
		b.wantMarker("k", driver.StateCompleted)
		verdict = idem.StillUnknown()
		return nil
	})
	_, _ = b.another(l, b.lossy).Do(t.Context(), b.operation("k", "a"), answers(500))
	b.wantRuns(1)
	b.wantMarker("k", driver.StateCompleted)
}

// TestUnknownKnownByAMarkerAloneCanBeSettled, before any client has come back.
func TestUnknownKnownByAMarkerAloneCanBeSettled(t *testing.T) {
	b := setupMarked(t, nil)
	id := idem.NewKeyID("m1", "k")
	b.wantAnswer("k", "a", 500)
	b.wantMarker("k", driver.StateUnknown)
	b.wipe()
	if _, err := b.engine.Decide(t.Context(), id, driver.Attempt{}, idem.Applied(created(70)), driver.Decision{By: "ops"}, &b.policy); err != nil {
		t.Fatalf("Decide() = %v", err)
	}
	b.wantMarker("k", driver.StateCompleted)
	b.wantPayment("k", "a", 70, true)
	if _, err := b.engine.Resolve(t.Context(), idem.NewKeyID("m1", "never"), &b.policy); !errors.Is(err, idem.ErrNotOpen) {
		t.Errorf("Resolve() of nothing = %v, want ErrNotOpen", err)
	}
}

func TestMarkerSettledBy(t *testing.T) {
	m := driver.Marker{State: driver.StateUnknown, Attempt: driver.Attempt{Number: 2, Fence: driver.Fence{Domain: "d", Token: 5}, Nonce: driver.Nonce{1}}}
	at := func(s driver.State, number uint32, token uint64, nonce byte) driver.Record {
		return driver.Record{State: s, Attempt: driver.Attempt{Number: number, Fence: driver.Fence{Domain: "d", Token: token}, Nonce: driver.Nonce{nonce}}}
	}
	for name, tt := range map[string]struct {
		rec  driver.Record
		want bool
	}{
		"none":                       {driver.Record{}, false},
		"open":                       {at(driver.StateUnknown, 2, 5, 1), false},
		"a later one, open":          {at(driver.StatePending, 3, 6, 2), false},
		"completed":                  {at(driver.StateCompleted, 2, 5, 1), true},
		"expired":                    {at(driver.StateExpired, 2, 5, 1), true},
		"released":                   {at(driver.StateReleased, 2, 5, 1), true},
		"released, later":            {at(driver.StateReleased, 3, 7, 2), true},
		"released, same fence":       {at(driver.StateReleased, 3, 5, 2), false},
		"completed, earlier":         {at(driver.StateCompleted, 1, 3, 2), true}, // no attempt follows
		"expired, earlier":           {at(driver.StateExpired, 1, 3, 2), true},
		"none, of a later attempt":   {at(driver.StateNone, 3, 7, 2), false},
		"released, an aborted one":   {at(driver.StateReleased, 2, 7, 2), false}, // or from before the marker
		"released, earlier":          {at(driver.StateReleased, 1, 3, 2), false},
		"released, after a loss":     {at(driver.StateReleased, 0, 9, 2), false},
		"issued, never used":         {at(driver.StateIssued, 0, 0, 0), false},
		"issued again, this attempt": {at(driver.StateIssued, 2, 5, 1), true},
	} {
		if got := m.SettledBy(&tt.rec); got != tt.want {
			t.Errorf("%s: SettledBy() = %v, want %v", name, got, tt.want)
		}
	}
}
