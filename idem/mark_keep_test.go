package idem_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

// fallenBehind is a key with a marker, in a store that fell back to an attempt in the state has.
// Its fence is earlier below the marked one, and 0 is the marked attempt itself.
func fallenBehind(t *testing.T, status int, earlier uint64, has driver.State) (b *markedBundle, was *driver.Marker) {
	t.Helper()
	b = setupMarked(t, runsAgain)
	b.wantAnswer("k", "a", status)
	was = b.marks.marker(idem.NewKeyID("m1", "k"))
	b.wipe()
	fence := was.Attempt.Fence
	fence.Token -= earlier
	nonce := was.Attempt.Nonce
	if earlier != 0 {
		nonce = driver.NewNonce()
	}
	b.storeAttempt(fence, nonce, has)
	return b, was
}

// stubborn is a store that settles nothing and gives no reason.
type stubborn struct{ driver.Store }

func (s stubborn) Settle(ctx context.Context, id driver.KeyID, _ driver.Settlement) (driver.SettleResult, error) {
	rec, err := s.Get(ctx, id)
	return driver.SettleResult{Record: rec}, err
}

// TestMarkerStaysWhileTheStoreCannotTakeItUp: the store has fallen back behind the marker and does not take the
// marker's word, with a reason or without. What the store has then decides nothing about the marker.
func TestMarkerStaysWhileTheStoreCannotTakeItUp(t *testing.T) {
	id := idem.NewKeyID("m1", "k")
	for name, tt := range map[string]struct {
		marker  driver.State
		status  int          // that leaves the marker
		earlier uint64       // how far the fence of the store's attempt is below the marked one
		has     driver.State // of the attempt in the store
		code    idem.Code    // from a store that gives no reason; "": the route runs again
	}{
		"in doubt, and an earlier attempt is released":   {driver.StateUnknown, 500, 2, driver.StateReleased, idem.CodeOutcomeUnknown},
		"in doubt, and an earlier attempt is in doubt":   {driver.StateUnknown, 500, 2, driver.StateUnknown, ""},
		"completed, and an earlier attempt is released":  {driver.StateCompleted, 201, 2, driver.StateReleased, idem.CodeResultUnavailable},
		"completed, and the attempt itself is in doubt":  {driver.StateCompleted, 201, 0, driver.StateUnknown, idem.CodeUnavailable},
		"completed, and the attempt itself is not ended": {driver.StateCompleted, 201, 0, driver.StatePending, idem.CodeUnavailable},
	} {
		for _, fails := range []bool{true, false} {
			if !fails && tt.code == "" {
				continue
			}
			t.Run(fmt.Sprintf("%s, the store fails: %t", name, fails), func(t *testing.T) {
				b, was := fallenBehind(t, tt.status, tt.earlier, tt.has)
				b.wantMarker("k", tt.marker)
				e, code := b.another(b.marks, stubborn{b.lossy}), tt.code
				if fails {
					broken := idemtest.NewFaultyStore(b.lossy)
					broken.FailBefore("Settle", idemtest.Every, nil)
					e, code = b.another(b.marks, broken), idem.CodeUnavailable
				}
				if _, err := e.Resolve(t.Context(), id, &b.policy); fails {
					b.wantRefused(err, code)
				}
				b.wantFree("k")
				b.wantRefusalBy(e, b.operation("k", "a"), code)
				b.wantFree("k")
				b.wantRuns(0)
				if m := b.marks.marker(id); m == nil || *m != *was {
					t.Errorf("marker = %+v, want it as it was: %+v", m, was)
				}
			})
		}
	}
}

// TestForeignAttemptBesideAMarkerIsLeftAlone: the store fell back to an open attempt under a lock of
// another domain, which the marker does not outrank. Nothing says that it was applied.
func TestForeignAttemptBesideAMarkerIsLeftAlone(t *testing.T) {
	b := setupMarked(t, nil)
	b.wantAnswer("k", "a", 500)
	b.wipe()
	b.storeAttempt(driver.Fence{Domain: "elsewhere", Token: 1}, driver.NewNonce(), driver.StatePending)
	b.wantRefusal("k", "a", idem.CodeInProgress)
	rec, err := b.lossy.Get(t.Context(), idem.NewKeyID("m1", "k"))
	if err != nil || rec.State != driver.StatePending {
		t.Errorf("Get() = %v, %v, want the attempt pending", rec.State, err)
	}
	b.wantMarker("k", driver.StateUnknown)
	b.wantRuns(0)
}

// TestMarkerIsLeftForAttemptsWithoutOne: an engine that keeps no markers yet has run the key
// while a request was on its way to the lock.
func TestMarkerIsLeftForAttemptsWithoutOne(t *testing.T) {
	for name, tt := range map[string]struct {
		status int
		ttl    bool // the outcome is over at once
		code   idem.Code
		want   driver.State
	}{
		"in doubt":  {500, false, idem.CodeOutcomeUnknown, driver.StateUnknown},
		"completed": {404, false, "", driver.StateCompleted},
		"expired":   {404, true, idem.CodeKeyExpired, driver.StateCompleted},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupMarked(t, nil)
			locks := idemtest.NewFaultyLocker(b.marks)
			locks.Before("TryAcquire", 1, func() error {
				p := b.policy
				if tt.ttl {
					p.ResultTTL = 1
				}
				op := b.operation("k", "a")
				op.Policy, op.Transport = &p, idem.TransportHTTP
				h := answers(tt.status)
				if tt.status == 500 {
					op.Transport = idem.TransportDirect // leaves no response
					h = func(context.Context) (idem.Response, error) { return idem.Response{}, errDown }
				}
				_, _ = b.another(b.locker, b.lossy).Do(t.Context(), op, h)
				return nil
			})
			res, err := b.another(locks, b.lossy).Do(t.Context(), b.operation("k", "a"), b.pay)
			if tt.code != "" {
				b.wantRefused(err, tt.code)
			} else if err != nil || !res.Replayed {
				t.Errorf("Do() = %+v, %v, want a replay", res, err)
			}
			b.wantRuns(0)
			b.wantMarker("k", tt.want)
		})
	}
}
