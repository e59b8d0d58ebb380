package sweeper_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// Until then the record binds the key to its request. After that it expires like any
// released one.
func TestRunAgainIsLeftAloneUntilTheKeyIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		b.policy.InDoubt, b.policy.ResultTTL, b.policy.KeyTTL = idem.RunAgain(), time.Hour, time.Hour
		b.interrupted("pending")
		b.interrupted("unknown")
		rec := b.wantState("unknown", driver.StatePending)
		if _, err := b.store.Settle(t.Context(), idOf("unknown"), driver.Settlement{Attempt: rec.Attempt, ID: driver.NewNonce(), State: driver.StateUnknown}); err != nil {
			t.Fatal(err)
		}
		held := b.begin("held")
		stop := b.run()
		defer stop()

		time.Sleep(59 * time.Minute) // of the fake clock
		b.wantState("pending", driver.StatePending)
		b.wantState("unknown", driver.StateUnknown)
		if sum := b.sum(); sum.Left == 0 || sum.Settled()+sum.Unknown+sum.Queued+sum.Failed != 0 {
			t.Errorf("passes = %+v, want the records left and nothing else", sum)
		}
		time.Sleep(6 * time.Minute)
		for _, key := range []string{"pending", "unknown"} {
			if rec := b.wantState(key, driver.StateReleased); rec.Decision.By != "sweeper" || rec.Attempt.Number != 1 {
				t.Errorf("%s was decided by %+v at attempt %d, want the sweeper at 1", key, rec.Decision, rec.Attempt.Number)
			}
		}
		b.wantState("held", driver.StatePending)
		held.ReleaseInBackground()
		time.Sleep(30 * time.Minute)
		b.wantState("held", driver.StateReleased)
		time.Sleep(40 * time.Minute)
		b.wantState("pending", driver.StateNone)
		if sum := b.sum(); sum.Released != 3 || sum.Queued != 0 || sum.Failed != 0 {
			t.Errorf("passes = %+v, want three released", sum)
		}
	})
}

// A deployment has shortened the times of the route since.
func TestRunAgainIsLeftAloneForAsLongAsTheRecordSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		b.policy.InDoubt, b.policy.ResultTTL, b.policy.KeyTTL = idem.RunAgain(), time.Hour, 10*time.Hour
		b.interrupted("k")
		b.policy.KeyTTL = time.Hour
		stop := b.run()
		defer stop()
		time.Sleep(9 * time.Hour)
		b.wantState("k", driver.StatePending)
		time.Sleep(2 * time.Hour)
		b.wantState("k", driver.StateReleased)
	})
}

// The clock of this process may be wrong.
func TestAgeForRunAgainIsByTheStoresClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		slow := memorystore.New(memorystore.WithClock(func() time.Time { return time.Now().Add(-2 * time.Hour) }))
		engine, err := idem.New(b.locker, slow)
		if err != nil {
			t.Fatal(err)
		}
		b.engine, b.listed = engine, slow
		b.policy.InDoubt, b.policy.ResultTTL, b.policy.KeyTTL = idem.RunAgain(), time.Hour, time.Hour
		got, err := slow.Begin(t.Context(), idOf("k"), driver.BeginRequest{Route: "POST /pay", Fence: driver.Fence{Domain: "gone", Token: 1}, Nonce: driver.NewNonce()})
		if err != nil || !got.Begun {
			t.Fatalf("Begin() = %+v, %v", got, err)
		}
		if err := slow.RetireDomain(t.Context(), "gone", driver.Decision{By: "ops"}); err != nil {
			t.Fatal(err)
		}
		defer b.run()()
		for _, want := range []driver.State{driver.StatePending, driver.StateReleased} {
			time.Sleep(50 * time.Minute) // of the fake clock
			if rec, err := slow.Get(t.Context(), idOf("k")); err != nil || rec.State != want {
				t.Errorf("Get() = %v, %v, want %v", rec.State, err, want)
			}
		}
	})
}

// A client may come back late, and its request runs again from the old attempt.
func TestAttemptThatBeganSinceIsNotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		b.policy.InDoubt, b.policy.ResultTTL, b.policy.KeyTTL = idem.RunAgain(), time.Hour, time.Hour
		b.interrupted("k")
		b.listed = &hooked{Store: b.store, list: func(q driver.OpenQuery, _ *driver.OpenPage) error {
			rec, err := b.store.Get(t.Context(), idOf("k"))
			if err != nil || q.OlderThan != time.Hour || rec.Attempt.Number > 1 || time.Since(rec.Started) < time.Hour {
				return err
			}
			op := idem.Operation{Transport: idem.TransportHTTP, Key: "k", Policy: &b.policy,
				Fingerprint: func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "POST /pay", "body") }}
			res, err := b.engine.Do(t.Context(), op, func(context.Context) (idem.Response, error) { return idem.Response{Status: 500}, nil })
			if err != nil || res.Attempt != 2 {
				t.Errorf("Do() = %+v, %v, want attempt 2", res, err)
			}
			return nil
		}}
		defer b.run()()
		time.Sleep(80 * time.Minute) // of the fake clock
		if rec := b.wantState("k", driver.StateUnknown); rec.Attempt.Number != 2 {
			t.Errorf("attempt %d is open, want 2", rec.Attempt.Number)
		}
	})
}
