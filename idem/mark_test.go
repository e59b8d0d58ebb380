package idem_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// markingLocker keeps markers beside the locks of another locker.
type markingLocker struct {
	driver.Locker
	mu      sync.Mutex
	markers map[driver.KeyID]*driver.Marker

	begun      func(*markingLease) error   // in place of MarkBegun; nil: what it does
	begunUnder func(context.Context) error // likewise
	released   func(*markingLease)         // in front of a release; nil: nothing
}

type markingLease struct {
	driver.Lease
	l      *markingLocker
	id     driver.KeyID
	found  *driver.Marker
	begun  *driver.Marker
	leave  *driver.Marker
	marked bool
}

func (l *markingLocker) TryAcquire(ctx context.Context, r driver.LockRequest) (driver.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, r)
	if err != nil {
		return nil, err
	}
	return &markingLease{Lease: lease, l: l, id: r.KeyID, found: l.marker(r.KeyID)}, nil
}

func (l *markingLocker) marker(id driver.KeyID) *driver.Marker {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.markers[id]
}

var _ driver.MarkingLease = (*markingLease)(nil)

func (l *markingLease) Marker() *driver.Marker         { return l.found }
func (l *markingLease) LeavesMarkers() bool            { return true }
func (l *markingLease) MarkOnRelease(m *driver.Marker) { l.leave, l.marked = m, true }

func (l *markingLease) MarkBegun(ctx context.Context, m driver.Marker) error {
	l.begun = &m
	if hook := l.l.begunUnder; hook != nil {
		return hook(ctx)
	}
	if hook := l.l.begun; hook != nil {
		return hook(l)
	}
	l.leaveUnknown()
	return nil
}

// leaveUnknown leaves the marker of MarkBegun.
func (l *markingLease) leaveUnknown() {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	l.l.markers[l.id] = l.begun
}

func (l *markingLease) settle() {
	if hook := l.l.released; hook != nil {
		hook(l)
	}
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	if l.marked && l.Err() == nil {
		l.l.markers[l.id] = l.leave
	}
}

func (l *markingLease) Release(ctx context.Context) error { l.settle(); return l.Lease.Release(ctx) }
func (l *markingLease) ReleaseInBackground()              { l.settle(); l.Lease.ReleaseInBackground() }

// fallibleStore is a store whose records can be lost.
type fallibleStore struct {
	driver.Store
	now atomic.Pointer[memorystore.Store]
}

func (s *fallibleStore) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	return s.now.Load().Get(ctx, id)
}

func (s *fallibleStore) Begin(ctx context.Context, id driver.KeyID, r driver.BeginRequest) (driver.BeginResult, error) {
	return s.now.Load().Begin(ctx, id, r)
}

func (s *fallibleStore) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
	return s.now.Load().Settle(ctx, id, st)
}

func (s *fallibleStore) Abort(ctx context.Context, id driver.KeyID, r driver.BeginRequest) error {
	return s.now.Load().Abort(ctx, id, r)
}

// markedBundle is a bundle whose locker keeps markers and whose store can be
// wiped.
type markedBundle struct {
	*bundle
	marks *markingLocker
	lossy *fallibleStore
}

func setupMarked(t *testing.T, policy func(*idem.Policy)) *markedBundle {
	t.Helper()
	b := &markedBundle{bundle: setup(t, parts{policy: policy}), lossy: &fallibleStore{}}
	b.marks = &markingLocker{Locker: b.locker, markers: map[driver.KeyID]*driver.Marker{}}
	b.wipe()
	b.lossy.Store = b.store
	b.engine = b.another(b.marks, b.lossy, idem.WithObserver(b.observe))
	return b
}

// wipe loses all records.
func (b *markedBundle) wipe() {
	s := b.newStore()
	b.lossy.now.Store(s)
	b.store = s
}

func (b *markedBundle) wantMarker(key string, want driver.State) {
	b.Helper()
	b.eventually("marker of "+key+" in state "+want.String(), func() bool {
		m := b.marks.marker(idem.NewKeyID("m1", idem.Key(key)))
		if m == nil {
			return want == driver.StateNone
		}
		return m.State == want
	})
}

func TestCompletedKeyIsNeverRunAgainAfterALoss(t *testing.T) {
	b := setupMarked(t, nil)
	b.wantPayment("k", "a", 1, false)
	b.wantMarker("k", driver.StateCompleted)
	b.wipe()
	b.wantRefusal("k", "b", idem.CodeKeyReused)
	for range 2 { // by the marker, and by the record that was written anew
		b.wantRefusal("k", "a", idem.CodeResultUnavailable)
	}
	b.wantRuns(1)
	b.wantState("k", driver.StateCompleted)
	b.wantEvents(telemetry.EventMarked, 1)
	b.wantMarker("k", driver.StateCompleted)
}

func TestKeyWithoutEffectLeavesNoMarker(t *testing.T) {
	b := setupMarked(t, nil)
	b.wantAnswer("k", "a", 429)
	b.wantMarker("k", driver.StateNone)
	b.wantPayment("k", "a", 1, false)
}

func TestUnknownOutcomeIsToldAfterALoss(t *testing.T) {
	b := setupMarked(t, nil)
	b.wantAnswer("k", "a", 500)
	b.wantMarker("k", driver.StateUnknown)
	b.wipe()
	for range 2 {
		b.wantRefusal("k", "a", idem.CodeOutcomeUnknown)
	}
	b.wantRuns(0)
	b.wantState("k", driver.StateUnknown)
	b.wantEvents(telemetry.EventMarked, 1)

	// An operator settles it; what the marker said is over then.
	if _, err := b.engine.Decide(t.Context(), idem.NewKeyID("m1", "k"), driver.Attempt{}, idem.NotApplied(), driver.Decision{By: "ops"}, &b.policy); err != nil {
		t.Fatalf("Decide() = %v", err)
	}
	b.wantMarker("k", driver.StateNone)
	b.wantPayment("k", "a", 1, false)
	b.wantMarker("k", driver.StateCompleted)
}

func TestResolverIsAskedAfterALoss(t *testing.T) {
	for name, tt := range map[string]struct {
		resolution idem.Resolution
		paid       int
		replayed   bool
	}{
		"applied":     {idem.Applied(created(70)), 70, true},
		"not applied": {idem.NotApplied(), 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			verdict := idem.StillUnknown()
			b := setupMarked(t, func(p *idem.Policy) {
				p.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) { return verdict, nil })
			})
			b.wantAnswer("k", "a", 500)
			b.wantMarker("k", driver.StateUnknown)
			b.wipe()
			verdict = tt.resolution
			b.wantPayment("k", "a", tt.paid, tt.replayed)
			b.wantMarker("k", driver.StateCompleted)
		})
	}
}

// TestStoreThatFellBackIsNotBelieved: a replica is promoted that has not seen
// the latest writes.
func TestStoreThatFellBackIsNotBelieved(t *testing.T) {
	earlier := func(f driver.Fence) driver.Fence { f.Token -= 2; return f }
	for name, fallBack := range map[string]func(b *markedBundle, was driver.Attempt){
		"to before the attempt, where a token was issued": func(b *markedBundle, _ driver.Attempt) { b.issue("k") },
		"to an earlier attempt that was released": func(b *markedBundle, was driver.Attempt) {
			b.storeAttempt(earlier(was.Fence), driver.NewNonce(), driver.StateReleased)
		},
		"to an earlier attempt that is open": func(b *markedBundle, was driver.Attempt) {
			b.storeAttempt(earlier(was.Fence), driver.NewNonce(), driver.StatePending)
		},
		"to the attempt itself, not settled": func(b *markedBundle, was driver.Attempt) { b.storeAttempt(was.Fence, was.Nonce, driver.StatePending) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setupMarked(t, func(p *idem.Policy) {
				p.InDoubt = idem.RunAgain() // the marker beats even that
				p.IssuedTokens = name == "to before the attempt, where a token was issued"
			})
			if b.policy.IssuedTokens {
				b.issue("k")
			}
			b.wantPayment("k", "a", 1, false)
			b.wantMarker("k", driver.StateCompleted)
			was := b.marks.marker(idem.NewKeyID("m1", "k")).Attempt
			b.wipe()
			fallBack(b, was)
			for range 2 {
				b.wantRefusal("k", "a", idem.CodeResultUnavailable)
			}
			b.wantRuns(1)
			b.wantMarker("k", driver.StateCompleted)
			b.wantState("k", driver.StateCompleted)
		})
	}
}

// TestMarkedKeyNeverFailsOpen: an engine that has seen the marker knows of an execution. (If
// even the first read fails, it does not look.)
func TestMarkedKeyNeverFailsOpen(t *testing.T) {
	b := setupMarked(t, func(p *idem.Policy) { p.FailOpen = true })
	b.wantPayment("k", "a", 1, false)
	b.wantMarker("k", driver.StateCompleted)
	b.wipe()
	gets := 0
	broken := idemtest.NewFaultyStore(b.lossy)
	broken.Before("Get", idemtest.Every, func() error {
		if gets++; gets > 1 {
			return errDown
		}
		return nil
	})
	b.wantRefusalBy(b.another(b.marks, broken), b.operation("k", "a"), idem.CodeUnavailable)
	b.wantRuns(1)
}

// TestAttemptAfterTheMarkedOneCounts: the record was decided, and another
// attempt made, since the marker was left.
func TestAttemptAfterTheMarkedOneCounts(t *testing.T) {
	b := setupMarked(t, nil)
	b.wantAnswer("k", "a", 500)
	b.wantMarker("k", driver.StateUnknown)
	id := idem.NewKeyID("m1", "k")
	rec, err := b.store.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	// Settled without the lock, as an operator can where the ensemble is down.
	if _, err := b.store.Settle(t.Context(), id, driver.Settlement{Attempt: rec.Attempt, ID: driver.NewNonce(), State: driver.StateReleased, KeyTTL: idem.DefaultKeyTTL}); err != nil {
		t.Fatal(err)
	}
	b.interrupted("k", "a") // an attempt that died before it left a marker
	b.wantRefusal("k", "a", idem.CodeOutcomeUnknown)
	b.wantRuns(0)
	if st := b.wantState("k", driver.StateUnknown); st.Attempt != 2 {
		t.Errorf("attempt %d is in doubt, want 2", st.Attempt)
	}
}

// TestTokenWithoutEffectLeavesNoMarker, also where nothing is left of its record.
func TestTokenWithoutEffectLeavesNoMarker(t *testing.T) {
	for name, want := range map[string]driver.State{"record kept": driver.StateIssued, "record lost": driver.StateNone} {
		t.Run(name, func(t *testing.T) {
			b := setupMarked(t, func(p *idem.Policy) { p.IssuedTokens = true })
			b.issue("k")
			_, err := b.doWith("k", "a", func(context.Context) (idem.Response, error) {
				if want == driver.StateNone {
					b.wipe()
				}
				return idem.Response{Status: 429}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			b.wantState("k", want)
			if m := b.marks.marker(idem.NewKeyID("m1", "k")); m != nil {
				t.Errorf("marker = %+v, want none: the attempt had no effect", m)
			}
		})
	}
}
