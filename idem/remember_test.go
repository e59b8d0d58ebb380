package idem_test

import (
	"context"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// month is how long the route of these tests remembers its keys.
const month = 30 * 24 * time.Hour

// remembering is a route that remembers its keys for a month.
func remembering(p *idem.Policy) { p.ResultTTL, p.KeyTTL = month/2, month }

// remembered requires the key to be known for the month of its route, and its result for half of it.
func (b *bundle) remembered(key, body string) {
	b.Helper()
	runs := b.runs.Load()
	b.advance(8 * 24 * time.Hour)
	if res, err := b.do(key, body); err != nil || !res.Replayed {
		b.Errorf("Do() after 8 days = replayed %t, %v, want the stored answer", res.Replayed, err)
	}
	b.advance(21 * 24 * time.Hour)
	if _, err := b.do(key, body); err == nil {
		b.Error("Do() after 29 days = <nil>, want a refusal")
	}
	b.wantRuns(runs)
	b.advance(2 * 24 * time.Hour)
	b.wantState(key, driver.StateNone)
}

// Whoever settles an outcome in doubt may know nothing of the route. The key is remembered all
// the same for as long as its route promised.
func TestSettlingWithoutThePolicyKeepsThePromiseOfTheRoute(t *testing.T) {
	ask := func(verdict idem.Resolution) idem.Policy {
		return idem.Policy{AllowGlobalKeys: true, InDoubt: idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) { return verdict, nil })}
	}
	id := idem.NewKeyID("m1", "k")
	for name, settle := range map[string]func(b *bundle) (driver.Record, error){
		"an operator": func(b *bundle) (driver.Record, error) {
			return b.engine.Decide(b.Context(), id, driver.Attempt{}, idem.Applied(created(1)), byOps, &idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
		},
		"a resolver": func(b *bundle) (driver.Record, error) {
			p := ask(idem.Applied(created(1)))
			return b.engine.Resolve(b.Context(), id, &p)
		},
		"a resolver that could not tell at first": func(b *bundle) (driver.Record, error) {
			for _, verdict := range []idem.Resolution{idem.StillUnknown(), idem.Applied(created(1))} {
				p := ask(verdict)
				if rec, err := b.engine.Resolve(b.Context(), id, &p); err != nil || rec.State == driver.StateCompleted {
					return rec, err
				}
			}
			return driver.Record{}, nil
		},
	} {
		for _, how := range []string{"unknown", "pending"} {
			t.Run(name+", "+how, func(t *testing.T) {
				b := setup(t, parts{policy: remembering})
				if how == "pending" {
					b.interrupted("k", "a")
				} else if _, err := b.doWith("k", "a", answers(504)); err != nil {
					t.Fatal(err)
				}
				if rec, err := settle(b); err != nil || rec.State != driver.StateCompleted {
					t.Fatalf("settled as %v, %v, want %v", rec.State, err, driver.StateCompleted)
				}
				b.remembered("k", "a")
			})
		}
	}
}

// A deployment shortens the times of a route. An operation that began before keeps its own.
func TestALaterAttemptWithAShorterPolicyForgetsNothingEarlier(t *testing.T) {
	for name, first := range map[string]idem.Handler{"from doubt": answers(504), "after a release": answers(429)} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { remembering(p); p.InDoubt = idem.RunAgain() }})
			if _, err := b.doWith("k", "a", first); err != nil {
				t.Fatal(err)
			}
			b.policy.ResultTTL, b.policy.KeyTTL = time.Hour, time.Hour
			b.wantPayment("k", "a", 1, false)
			b.advance(8 * 24 * time.Hour)
			if _, err := b.do("k", "a"); err != nil && name == "from doubt" {
				t.Errorf("Do() after 8 days = %v, want the stored answer", err)
			}
			b.wantRuns(1)
		})
	}
}

// A store that lost its record gets it back from an operator, who had read it before, or from a
// marker. Neither knows the policy of the route, and both know its times.
func TestARecordWrittenAnewKeepsThePromiseOfTheRoute(t *testing.T) {
	id := idem.NewKeyID("m1", "k")
	decide := func(b *bundle) {
		rec, err := b.engine.Decide(b.Context(), id, driver.Attempt{}, idem.Applied(created(1)), byOps, &idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
		if err != nil || rec.State != driver.StateCompleted {
			t.Fatalf("Decide() = %v, %v, want %v", rec.State, err, driver.StateCompleted)
		}
	}
	t.Run("by an operator", func(t *testing.T) {
		b := setup(t, parts{policy: remembering})
		b.wantAnswer("k", "a", 504)
		anew := b.newStore()
		b.engine = b.another(b.locks, &lostAtSettle{Store: b.store, anew: anew})
		decide(b)
		b.engine = b.another(b.locks, anew)
		b.remembered("k", "a")
	})
	for name, marked := range map[string]func(*markedBundle){
		"by a marker of an outcome in doubt": func(*markedBundle) {},
		"by a marker of an attempt that died": func(b *markedBundle) {
			m := b.marks.marker(id)
			m.State = driver.StateUnknown
			b.marks.markers[id] = m
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupMarked(t, remembering)
			b.wantAnswer("k", "a", 504)
			b.wantMarker("k", driver.StateUnknown)
			marked(b)
			b.wipe()
			decide(b.bundle)
			b.marks.markers = map[driver.KeyID]*driver.Marker{} // the record alone has to know
			b.remembered("k", "a")
		})
	}
}

// lostAtSettle loses its records right before the first settlement.
type lostAtSettle struct {
	driver.Store
	anew driver.Store
}

func (s *lostAtSettle) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
	s.Store = s.anew
	return s.Store.Settle(ctx, id, st)
}
