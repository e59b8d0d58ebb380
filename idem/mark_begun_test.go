package idem_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// loseLease ends the lease of a key, as the end of its holder's session does.
func (b *markedBundle) loseLease(key string) {
	b.Helper()
	if !b.locker.Revoke(idem.NewKeyID("m1", idem.Key(key))) {
		b.Fatalf("the lock of %s is free, want a holder", key)
	}
}

// dies starts a request whose holder is not heard of again while the test runs.
func (b *markedBundle) dies(key, body string) {
	b.Helper()
	finish := b.started(key, body, b.pay)
	b.Cleanup(func() { _, _ = finish() })
	b.loseLease(key)
}

func TestMarkerIsThereWhileTheHandlerRuns(t *testing.T) {
	b := setupMarked(t, nil)
	finish := b.started("k", "a", b.pay)
	b.wantMarker("k", driver.StateUnknown)
	rec, err := b.store.Get(t.Context(), idem.NewKeyID("m1", "k"))
	if err != nil {
		t.Fatal(err)
	}
	if m := b.marks.marker(idem.NewKeyID("m1", "k")); m.Attempt != rec.Attempt || m.Fingerprint != rec.Fingerprint || m.Route != rec.Route || !m.Started.Equal(rec.Started) {
		t.Errorf("marker = %+v, want what the record says: %+v", m, rec)
	}
	res, err := finish()
	b.wantPaid(res, err, 1, false)
	b.wantMarker("k", driver.StateCompleted)
}

// TestHolderDiesAndAllRecordsAreLost: the process, or its session, is gone when the
// store is wiped, before its handler has returned or right after its client was
// answered.
func TestHolderDiesAndAllRecordsAreLost(t *testing.T) {
	for name, paid := range map[string]bool{"while its handler runs": false, "when its client was answered": true} {
		t.Run(name, func(t *testing.T) {
			b := setupMarked(t, nil)
			if paid {
				b.marks.released = func(l *markingLease) { b.loseLease("k") }
				b.wantPayment("k", "a", 1, false)
				b.marks.released = nil
			} else {
				b.dies("k", "a")
			}
			b.wantMarker("k", driver.StateUnknown)
			b.wipe()
			runs := b.runs.Load()
			other := b.another(b.marks, b.lossy)
			for range 2 {
				b.wantRefusalBy(other, b.operation("k", "a"), idem.CodeOutcomeUnknown)
			}
			b.wantRefusalBy(other, b.operation("k", "b"), idem.CodeKeyReused)
			b.wantRuns(runs)
			b.wantMarker("k", driver.StateUnknown)
		})
	}
}

// TestInterruptedMarkedAttemptIsResolved: the store kept its record, and the marker
// says what the record does.
func TestInterruptedMarkedAttemptIsResolved(t *testing.T) {
	for name, wiped := range map[string]bool{"record kept": false, "record lost": true} {
		for how, resolve := range map[string]func(b *markedBundle, e *idem.Engine) error{
			"by a request": func(b *markedBundle, e *idem.Engine) error {
				_, err := e.Do(b.Context(), b.operation("k", "a"), b.pay)
				return err
			},
			"by the sweeper": func(b *markedBundle, e *idem.Engine) error {
				_, err := e.Resolve(b.Context(), idem.NewKeyID("m1", "k"), &b.policy)
				return err
			},
		} {
			for verdict, tt := range map[string]struct {
				resolution idem.Resolution
				marker     map[string]driver.State // by how
				runs       map[string]int64
			}{
				"applied": {idem.Applied(created(70)),
					map[string]driver.State{"by a request": driver.StateCompleted, "by the sweeper": driver.StateCompleted}, nil},
				"not applied": {idem.NotApplied(),
					map[string]driver.State{"by a request": driver.StateCompleted, "by the sweeper": driver.StateNone}, map[string]int64{"by a request": 1}},
				"still unknown": {idem.StillUnknown(),
					map[string]driver.State{"by a request": driver.StateUnknown, "by the sweeper": driver.StateUnknown}, nil},
			} {
				t.Run(name+", "+how+", "+verdict, func(t *testing.T) {
					b := setupMarked(t, func(p *idem.Policy) { p.InDoubt = resolverSays(tt.resolution) })
					b.dies("k", "a")
					if wiped {
						b.wipe()
					}
					err := resolve(b, b.another(b.marks, b.lossy))
					if verdict == "still unknown" && how == "by a request" {
						b.wantRefused(err, idem.CodeOutcomeUnknown)
					} else if err != nil {
						t.Fatal(err)
					}
					b.wantMarker("k", tt.marker[how])
					b.wantRuns(tt.runs[how])
				})
			}
		}
	}
}

// TestUnacknowledgedMarkerRunsNothing, and does not leave the key in doubt: whether
// the marker is there or not, and whether its holder has the lock or not.
func TestUnacknowledgedMarkerRunsNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		begun func(b *markedBundle, l *markingLease) error
		code  idem.Code
		wipe  bool
	}{
		"request lost": {func(*markedBundle, *markingLease) error { return errDown }, idem.CodeUnavailable, false},
		"reply lost":   {func(_ *markedBundle, l *markingLease) error { l.leaveUnknown(); return errDown }, idem.CodeUnavailable, false},
		"reply lost, and then the record": {func(b *markedBundle, l *markingLease) error {
			l.leaveUnknown()
			b.wipe()
			return errDown
		}, idem.CodeUnavailable, true},
		"lease lost": {func(b *markedBundle, l *markingLease) error { b.loseLease("k"); return driver.ErrLeaseLost }, idem.CodeOwnershipLost, false},
		"lease lost, marker left": {func(b *markedBundle, l *markingLease) error {
			l.leaveUnknown()
			b.loseLease("k")
			return driver.ErrLeaseLost
		}, idem.CodeOwnershipLost, false},
		"lease lost right after": {func(b *markedBundle, l *markingLease) error {
			l.leaveUnknown()
			b.loseLease("k")
			return nil
		}, idem.CodeOwnershipLost, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupMarked(t, func(p *idem.Policy) { p.FailOpen = true })
			b.marks.begun = func(l *markingLease) error { return tt.begun(b, l) }
			b.wantRefusal("k", "a", tt.code)
			b.wantRuns(0)
			b.marks.begun = nil
			b.eventually("settlement", func() bool { return b.saw(telemetry.EventReleased) > 0 })
			b.wantState("k", driver.StateReleased)
			res, err := b.doWhenFree("k", "another body: nothing is bound")
			b.wantPaid(res, err, 1, false)
			b.wantMarker("k", driver.StateCompleted)
			b.wantEvents(telemetry.EventBegun, 1)
		})
	}
}

// TestUnacknowledgedMarkerOfARerun: nothing ran, and the attempt that it started from is
// still in doubt.
func TestUnacknowledgedMarkerOfARerun(t *testing.T) {
	b := setupMarked(t, func(p *idem.Policy) { p.InDoubt = idem.RunAgain() })
	b.dies("k", "a")
	b.marks.begun = func(*markingLease) error { return errDown }
	other := b.another(b.marks, b.lossy, idem.WithObserver(b.observe))
	b.wantRefusalBy(other, b.operation("k", "a"), idem.CodeUnavailable)
	b.wantRuns(0)
	b.eventually("settlement", func() bool { return b.saw(telemetry.EventUnknown)+b.saw(telemetry.EventReleased) > 0 })
	if st := b.wantState("k", driver.StateUnknown); st.Attempt != 2 {
		t.Errorf("attempt %d is unknown, want 2", st.Attempt)
	}
}

// TestUnacknowledgedMarkerOfALaterAttempt: the marker of an attempt that was decided
// is there when the next one cannot leave its own.
func TestUnacknowledgedMarkerOfALaterAttempt(t *testing.T) {
	b := setupMarked(t, func(p *idem.Policy) { p.InDoubt = resolverSays(idem.NotApplied()) })
	b.dies("k", "a")
	b.marks.begun = func(*markingLease) error { return errDown }
	other := b.another(b.marks, b.lossy, idem.WithObserver(b.observe))
	b.wantRefusalBy(other, b.operation("k", "a"), idem.CodeUnavailable)
	b.wantRuns(0)
	b.wantMarker("k", driver.StateNone)
	if st := b.wantState("k", driver.StateReleased); st.Attempt != 2 {
		t.Errorf("attempt %d is released, want 2", st.Attempt)
	}
}

// TestMarkerWaitsForItsDeadline: a lock service that does not answer holds a request
// for the engine's lock time-out and no longer.
func TestMarkerWaitsForItsDeadline(t *testing.T) {
	b := setupMarked(t, nil)
	b.marks.begunUnder = func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
	_, err := b.another(b.marks, b.lossy, idem.WithLockTimeout(time.Millisecond)).Do(t.Context(), b.operation("k", "a"), b.pay)
	b.wantRefused(err, idem.CodeUnavailable)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Do() = %v, want %v", err, context.DeadlineExceeded)
	}
	b.wantRuns(0)
}
