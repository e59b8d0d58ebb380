package idem_test

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

// TestStoreThatFallsBackUnderAHolder: what the holder knows, and has told its
// client, goes before what the store has become.
func TestStoreThatFallsBackUnderAHolder(t *testing.T) {
	ctx := context.Background()
	id := idem.NewKeyID("m1", "k")
	fp, _ := fingerprintOf("http", "a")(1)
	for name, tt := range map[string]struct {
		kind idem.KeyKind
		fall func(b *markedBundle)
	}{
		"issued token again": {idem.IssuedToken, func(b *markedBundle) {
			if _, err := b.store.Issue(ctx, id, idem.DefaultTokenTTL); err != nil {
				b.Fatal(err)
			}
		}},
		"earlier released attempt": {idem.ClientKey, func(b *markedBundle) {
			got, err := b.store.Begin(ctx, id, idem.BeginRequest{Kind: b.policy.Kind, Fence: idem.Fence{Domain: "x", Token: 1}, Nonce: idem.NewNonce(), Fingerprint: fp})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := b.store.Settle(ctx, id, idem.Settlement{Attempt: got.Record.Attempt, State: idem.StateReleased, KeyTTL: idem.DefaultKeyTTL}); err != nil {
				b.Fatal(err)
			}
		}},
		"earlier open attempt, route that runs again in doubt": {idem.ClientKey, func(b *markedBundle) {
			b.policy.InDoubt = idem.RunAgain()
			if _, err := b.store.Begin(ctx, id, idem.BeginRequest{Kind: b.policy.Kind, Fence: idem.Fence{Domain: b.domain(), Token: 1}, Nonce: idem.NewNonce(), Fingerprint: fp}); err != nil {
				b.Fatal(err)
			}
		}},
		"wiped, then the late abort of an earlier holder": {idem.ClientKey, func(b *markedBundle) {
			if err := b.store.Abort(ctx, id, idem.BeginRequest{Kind: b.policy.Kind, Fence: idem.Fence{Domain: "x", Token: 1}, Nonce: idem.NewNonce(), Fingerprint: fp}); err != nil {
				b.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupMarked(t, func(p *idem.Policy) { p.Kind = tt.kind })
			if tt.kind == idem.IssuedToken {
				if _, err := b.store.Issue(ctx, id, idem.DefaultTokenTTL); err != nil {
					t.Fatal(err)
				}
			}
			res, err := b.doWith("k", "a", func(c context.Context) (idem.Response, error) {
				b.wipe()
				tt.fall(b)
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
	l, err := b.locker.TryAcquire(context.Background(), idem.LockRequest{KeyID: idem.NewKeyID("other", "other")})
	if err != nil {
		b.Fatal(err)
	}
	defer l.ReleaseInBackground()
	return l.Fence().Domain
}

// beforeBegin returns the store of b with a call of fn before its first Begin.
func (b *markedBundle) beforeBegin(fn func() error) idem.Store {
	s := idemtest.NewFaultyStore(b.lossy)
	s.Before("Begin", 1, fn)
	return s
}

// TestFallbackBetweenMarkerAndBegin: the store falls back to an earlier attempt in
// doubt after its record was compared with the marker, which stays as it is.
func TestFallbackBetweenMarkerAndBegin(t *testing.T) {
	b := setupMarked(t, nil)
	_, _ = b.doWith("k", "a", func(context.Context) (idem.Response, error) { return idem.Response{}, errDown })
	b.wantMarker("k", idem.StateUnknown)
	id := idem.NewKeyID("m1", "k")
	earlier, first := b.lossy.now.Load(), b.marks.marker(id)
	later := *first
	later.State, later.Attempt = idem.StateCompleted, idem.Attempt{Number: 2, Fence: first.Attempt.Fence, Nonce: idem.NewNonce()}
	later.Attempt.Fence.Token++
	b.marks.markers[id] = &later
	b.wipe()
	h := b.beforeBegin(func() error { b.lossy.now.Store(earlier); return nil })
	_, err := b.another(b.marks, h).Do(t.Context(), b.operation("k", "a"), b.pay)
	b.wantRefused(err, idem.CodeOutcomeUnknown)
	if m := b.marks.marker(id); m.State != idem.StateCompleted || m.Attempt != later.Attempt {
		t.Errorf("marker = %v of attempt %d, want %v of attempt 2", m.State, m.Attempt.Number, idem.StateCompleted)
	}
}

// TestLossBetweenMarkerAndBegin: what was read under the marker is gone when the
// attempt begins.
func TestLossBetweenMarkerAndBegin(t *testing.T) {
	b := setupMarked(t, nil)
	res, err := b.do("k", "a")
	b.wantPaid(res, err, 1, false)
	b.wantMarker("k", idem.StateCompleted)
	b.wipe()
	h := b.beforeBegin(func() error { b.wipe(); return nil })
	_, err = b.another(b.marks, h).Do(t.Context(), b.operation("k", "a"), b.pay)
	b.wantRefused(err, idem.CodeUnavailable)
	b.wantRuns(1)
}

// TestNothingBeginsUnderAMarkerThatCannotBeCompared: the record cannot be read under the lock.
func TestNothingBeginsUnderAMarkerThatCannotBeCompared(t *testing.T) {
	b := setupMarked(t, nil)
	res, err := b.do("k", "a")
	b.wantPaid(res, err, 1, false)
	b.wantMarker("k", idem.StateCompleted)
	b.wipe()
	store := idemtest.NewFaultyStore(b.lossy)
	store.FailBefore("Get", 2, nil)
	_, err = b.another(b.marks, store).Do(t.Context(), b.operation("k", "a"), b.pay)
	b.wantRefused(err, idem.CodeUnavailable)
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
		b.wantMarker("k", idem.StateCompleted)
		return nil
	})
	_, err := b.another(l, h).Do(t.Context(), b.operation("k", "a"), b.pay)
	b.wantRefused(err, idem.CodeUnavailable)
	b.wantRuns(1)
}

// TestAbortedBeginDoesNotOutrankAMarker: the store dies under the Begin of a
// repeat and comes back empty; the abort leaves a released record with a later
// fence than the marker's.
func TestAbortedBeginDoesNotOutrankAMarker(t *testing.T) {
	b := setupMarked(t, nil)
	res, err := b.do("k", "a")
	b.wantPaid(res, err, 1, false)
	b.wantMarker("k", idem.StateCompleted)
	b.wipe()
	h := b.beforeBegin(func() error { b.wipe(); return errDown })
	_, err = b.another(b.marks, h, idem.WithObserver(b.observe)).Do(t.Context(), b.operation("k", "a"), b.pay)
	b.wantRefused(err, idem.CodeUnavailable)
	b.eventually("abort", func() bool { return b.saw(idem.EventBeginAborted) > 0 })
	b.eventually("release", func() bool {
		_, err = b.do("k", "a")
		return !refusedAs(err, idem.CodeInProgress)
	})
	b.wantRefused(err, idem.CodeResultUnavailable)
	b.wantRuns(1)
}

// TestAbortedBeginDoesNotHideAnAttemptInDoubt: as before, and the marked attempt is in doubt.
// It can still be settled, by a resolver and by an operator.
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
			_, err := b.engine.Decide(t.Context(), id, idem.Attempt{}, idem.Applied(created(70)), idem.Decision{By: "ops"}, &b.policy)
			return err
		}, 70, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupMarked(t, nil)
			if _, err := b.doWith("k", "a", answers(500)); err != nil {
				t.Fatal(err)
			}
			b.wantMarker("k", idem.StateUnknown)
			domain := b.domain() // its fence is above that of the marker
			b.wipe()
			late := idem.BeginRequest{Fence: idem.Fence{Domain: domain, Token: b.marks.marker(id).Attempt.Fence.Token + 1}, Nonce: idem.NewNonce()}
			if err := b.lossy.Abort(t.Context(), id, late); err != nil {
				t.Fatal(err)
			}
			broken := idemtest.NewFaultyStore(b.lossy)
			broken.FailBefore("Settle", 2, nil) // the attempt is not written anew
			_, err := b.another(b.marks, broken).Do(t.Context(), b.operation("k", "a"), b.pay)
			b.wantRefused(err, idem.CodeUnavailable)
			if err := tt.settle(b); !errors.Is(err, idem.ErrUnavailable) {
				t.Fatalf("the first call = %v, want %v", err, idem.ErrUnavailable)
			}
			b.wantMarker("k", idem.StateUnknown)
			if err := tt.settle(b); err != nil {
				t.Fatalf("the second call = %v, want <nil>", err)
			}
			b.wantMarker("k", idem.StateCompleted)
			res, err := b.do("k", "a")
			b.wantPaid(res, err, tt.payment, true)
			b.wantRuns(int64(tt.runs))
		})
	}
}

func refusedAs(err error, code idem.Code) bool {
	r, ok := errors.AsType[*idem.Refusal](err)
	return ok && r.Code == code
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
		res, err := b.do("k", "a")
		b.wantPaid(res, err, 1, false)
		b.wantMarker("k", idem.StateCompleted)
		verdict = idem.StillUnknown()
		return nil
	})
	_, _ = b.another(l, b.lossy).Do(t.Context(), b.operation("k", "a"), answers(500))
	b.wantRuns(1)
	b.wantMarker("k", idem.StateCompleted)
}

// TestUnknownKnownByAMarkerAloneCanBeSettled, before any client has come back.
func TestUnknownKnownByAMarkerAloneCanBeSettled(t *testing.T) {
	b := setupMarked(t, nil)
	id := idem.NewKeyID("m1", "k")
	if _, err := b.doWith("k", "a", answers(500)); err != nil {
		t.Fatal(err)
	}
	b.wantMarker("k", idem.StateUnknown)
	b.wipe()
	if _, err := b.engine.Decide(t.Context(), id, idem.Attempt{}, idem.Applied(created(70)), idem.Decision{By: "ops"}, &b.policy); err != nil {
		t.Fatalf("Decide() = %v", err)
	}
	b.wantMarker("k", idem.StateCompleted)
	res, err := b.do("k", "a")
	b.wantPaid(res, err, 70, true)
	if _, err := b.engine.Resolve(t.Context(), idem.NewKeyID("m1", "never"), &b.policy); !errors.Is(err, idem.ErrNotOpen) {
		t.Errorf("Resolve() of nothing = %v, want ErrNotOpen", err)
	}
}

func TestMarkerSettledBy(t *testing.T) {
	m := idem.Marker{State: idem.StateUnknown, Attempt: idem.Attempt{Number: 2, Fence: idem.Fence{Domain: "d", Token: 5}, Nonce: idem.Nonce{1}}}
	at := func(s idem.State, number uint32, token uint64, nonce byte) idem.Record {
		return idem.Record{State: s, Attempt: idem.Attempt{Number: number, Fence: idem.Fence{Domain: "d", Token: token}, Nonce: idem.Nonce{nonce}}}
	}
	for name, tt := range map[string]struct {
		rec  idem.Record
		want bool
	}{
		"none":                       {idem.Record{}, false},
		"open":                       {at(idem.StateUnknown, 2, 5, 1), false},
		"a later one, open":          {at(idem.StatePending, 3, 6, 2), false},
		"completed":                  {at(idem.StateCompleted, 2, 5, 1), true},
		"expired":                    {at(idem.StateExpired, 2, 5, 1), true},
		"released":                   {at(idem.StateReleased, 2, 5, 1), true},
		"released, later":            {at(idem.StateReleased, 3, 7, 2), true},
		"released, same fence":       {at(idem.StateReleased, 3, 5, 2), false},
		"completed, earlier":         {at(idem.StateCompleted, 1, 3, 2), true}, // no attempt follows
		"expired, earlier":           {at(idem.StateExpired, 1, 3, 2), true},
		"none, of a later attempt":   {at(idem.StateNone, 3, 7, 2), false},
		"released, an aborted one":   {at(idem.StateReleased, 2, 7, 2), false}, // or from before the marker
		"released, earlier":          {at(idem.StateReleased, 1, 3, 2), false},
		"released, after a loss":     {at(idem.StateReleased, 0, 9, 2), false},
		"issued, never used":         {at(idem.StateIssued, 0, 0, 0), false},
		"issued again, this attempt": {at(idem.StateIssued, 2, 5, 1), true},
	} {
		if got := m.SettledBy(&tt.rec); got != tt.want {
			t.Errorf("%s: SettledBy() = %v, want %v", name, got, tt.want)
		}
	}
}
