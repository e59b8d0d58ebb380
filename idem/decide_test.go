package idem_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

var byOps = driver.Decision{By: "ops", Reason: "seen in the bank's statement"}

func (b *bundle) resolve(key string) (driver.Record, error) {
	return b.engine.Resolve(b.Context(), idem.NewKeyID("m1", idem.Key(key)), &b.policy)
}

func (b *bundle) decide(key string, r idem.Resolution) (driver.Record, error) {
	return b.engine.Decide(b.Context(), idem.NewKeyID("m1", idem.Key(key)), driver.Attempt{}, r, byOps, &b.policy)
}

func TestResolveSettlesWithoutARequest(t *testing.T) {
	reasons := map[string]string{"still unknown": "cannot tell", "error": "down", "panic": "boom", "none": "no resolver"}
	for name, tt := range map[string]struct {
		resolver idem.Resolver
		want     driver.State
		by       string
	}{
		"applied": {func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			return idem.Applied(created(70)), nil
		}, driver.StateCompleted, "resolver"},
		"not applied":   {func(context.Context, idem.Interrupted) (idem.Resolution, error) { return idem.NotApplied(), nil }, driver.StateReleased, "resolver"},
		"still unknown": {func(context.Context, idem.Interrupted) (idem.Resolution, error) { return idem.StillUnknown(), nil }, driver.StateUnknown, "resolver"},
		"error": {func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			return idem.NotApplied(), errors.New("down")
		}, driver.StateUnknown, "resolver"},
		"panic": {func(context.Context, idem.Interrupted) (idem.Resolution, error) { panic("boom") }, driver.StateUnknown, "resolver"},
		"none":  {nil, driver.StateUnknown, "engine"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = idem.AskResolver(tt.resolver) }})
			b.interrupted("k", "a")
			rec, err := b.resolve("k")
			if err != nil || rec.State != tt.want || rec.Decision.By != tt.by {
				t.Fatalf("Resolve() = %v by %q, %v; want %v by %q", rec.State, rec.Decision.By, err, tt.want, tt.by)
			}
			if want := reasons[name]; !strings.Contains(rec.Decision.Reason, want) || want == "" && rec.Decision.Reason != "" {
				t.Errorf("reason = %q, want one with %q", rec.Decision.Reason, want)
			}
			if tt.want == driver.StateUnknown { // and nobody is told again that it became so
				again, err := b.resolve("k")
				asked := map[bool]int{true: 1}[tt.resolver != nil]
				if err != nil || again.Decision != rec.Decision || b.saw(telemetry.EventUnknown) != 1 || b.saw(telemetry.EventResolved) != 0 || b.saw(telemetry.EventUnresolved) != asked {
					t.Errorf("second Resolve() = %+v, %v after the events %v; want %+v as it was, told once as unknown", again.Decision, err, b.events, rec.Decision)
				}
			}
			b.wantState("k", tt.want)
			if tt.want == driver.StateCompleted {
				b.wantPayment("k", "a", 70, true)
			}
			if b.held("k") {
				t.Error("the lock is left")
			}
		})
	}
}

func TestRunningHolderIsNotDisturbed(t *testing.T) {
	asked := atomic.Int64{}
	b := setup(t, parts{policy: func(p *idem.Policy) {
		p.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			asked.Add(1)
			return idem.NotApplied(), nil
		})
	}})
	finish := b.started("k", "a", b.pay)
	if _, err := b.resolve("k"); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("Resolve() = %v, want ErrLocked", err)
	}
	if _, err := b.decide("k", idem.NotApplied()); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("Decide() = %v, want ErrLocked", err)
	}
	res, err := finish()
	b.wantPaid(res, err, 1, false)
	if asked.Load() != 0 {
		t.Error("the resolver was asked about a holder that ran")
	}
}

func TestNothingToDecide(t *testing.T) {
	b := setup(t, parts{})
	if _, err := b.resolve("never"); !errors.Is(err, idem.ErrNotOpen) {
		t.Errorf("Resolve() of nothing = %v, want ErrNotOpen", err)
	}
	b.wantPayment("k", "a", 1, false)
	if rec, err := b.decide("k", idem.NotApplied()); !errors.Is(err, idem.ErrNotOpen) || rec.State != driver.StateCompleted {
		t.Errorf("Decide() of a completed key = %v, %v; want ErrNotOpen", rec.State, err)
	}
	b.interrupted("open", "a")
	if _, err := b.decide("open", idem.StillUnknown()); err == nil {
		t.Error("Decide(StillUnknown) = nil, want an error")
	}
	b.wantState("open", driver.StatePending)
}

func TestOperatorsWordIsWhatRepeatsGet(t *testing.T) {
	b := setup(t, parts{})
	b.interrupted("paid", "a")
	rec, err := b.decide("paid", idem.Applied(created(70)))
	if err != nil || rec.State != driver.StateCompleted || rec.Decision != byOps {
		t.Fatalf("Decide(applied) = %+v, %v", rec, err)
	}
	b.wantPayment("paid", "a", 70, true)

	b.interrupted("free", "a")
	if rec, err = b.decide("free", idem.NotApplied()); err != nil || rec.State != driver.StateReleased || rec.Decision != byOps {
		t.Fatalf("Decide(not applied) = %+v, %v", rec, err)
	}
	b.wantPayment("free", "a", 1, false)
	for _, ev := range b.events {
		if ev.Type == telemetry.EventResolved && ev.By != byOps.By {
			t.Errorf("the decision was told as one by %q, want %q", ev.By, byOps.By)
		}
	}
}

// TestOneDecisionOfManyStands: operators, sweepers and retries at once.
func TestOneDecisionOfManyStands(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) {
		p.DuplicateWait = patience
		p.InDoubt = resolverSays(idem.Applied(created(70)))
	}})
	b.interrupted("k", "a")
	var decided atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := b.decide("k", idem.Applied(created(71))); err == nil {
				decided.Add(1)
			}
		})
		wg.Go(func() {
			if _, err := b.resolve("k"); err == nil {
				decided.Add(1)
			}
		})
		wg.Go(func() {
			if _, err := b.do("k", "a"); err != nil {
				t.Errorf("Do() = %v", err)
			}
		})
	}
	wg.Wait()
	if n, byRequest := decided.Load(), b.saw(telemetry.EventResolved); n > 1 || byRequest != 1 {
		t.Errorf("%d decisions told, %d made, want one made", n, byRequest)
	}
	b.wantRuns(0)
}

func TestForeignAttemptWaitsUntilItsDomainIsRetired(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = resolverSays(idem.NotApplied()) }})
	old := driver.Fence{Domain: "burnt down", Token: 1 << 60}
	b.begin(idem.NewKeyID("m1", "k"), "a", old)
	b.wantRefusal("k", "a", idem.CodeInProgress)
	if _, err := b.resolve("k"); !errors.Is(err, idem.ErrForeignDomain) {
		t.Errorf("Resolve() = %v, want ErrForeignDomain", err)
	}
	if _, err := b.decide("k", idem.NotApplied()); !errors.Is(err, idem.ErrForeignDomain) {
		t.Errorf("Decide() = %v, want ErrForeignDomain", err)
	}
	b.wantState("k", driver.StatePending)
	if err := b.store.RetireDomain(t.Context(), old.Domain, byOps); err != nil {
		t.Fatal(err)
	}
	res := b.wantPayment("k", "a", 1, false)
	if res.Attempt != 2 {
		t.Errorf("attempt = %d, want 2", res.Attempt)
	}
}

// TestDecisionThatComesTooLate: a holder that had lost its lock has finished
// while the operator's decision was on its way.
func TestDecisionThatComesTooLate(t *testing.T) {
	b := setup(t, parts{})
	attempt := b.interrupted("k", "a")
	b.faults.Before("Settle", 1, func() error {
		_, err := b.store.Settle(t.Context(), idem.NewKeyID("m1", "k"), driver.Settlement{Attempt: attempt, ID: attempt.Nonce,
			State: driver.StateCompleted, Response: &driver.Response{Status: 201, Body: []byte("payment 70")}, ResultTTL: idem.DefaultResultTTL})
		return err
	})
	rec, err := b.engine.Decide(t.Context(), idem.NewKeyID("m1", "k"), attempt, idem.NotApplied(), byOps, &b.policy)
	if !errors.Is(err, idem.ErrNotOpen) || rec.State != driver.StateCompleted {
		t.Errorf("Decide() = %v, %v; want ErrNotOpen of a completed record", rec.State, err)
	}
	b.wantPayment("k", "a", 70, true)
}

// TestDecisionThatTheStoreDoesNotAnswer may have been made, and is no ErrNotOpen.
func TestDecisionThatTheStoreDoesNotAnswer(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = resolverSays(idem.NotApplied()) }})
	b.interrupted("k", "a")
	b.faults.FailBefore("Settle", 1, nil)
	b.faults.FailBefore("Settle", 2, nil)
	_, decided := b.decide("k", idem.NotApplied())
	_, resolved := b.engine.Resolve(t.Context(), idem.NewKeyID("m1", "k"), &b.policy)
	for name, err := range map[string]error{"Decide": decided, "Resolve": resolved} {
		if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, idem.ErrNotOpen) {
			t.Errorf("%s() = %v, want %v", name, err, driver.ErrUnavailable)
		}
	}
	b.wantState("k", driver.StatePending)
}

func TestDecisionThatCannotBeStoredIsRefused(t *testing.T) {
	b := setup(t, parts{})
	b.interrupted("k", "a")
	values := make([]string, 5000)
	_, err := b.decide("k", idem.Applied(idem.Response{Status: 201, Header: map[string][]string{"X": values}}))
	if !errors.Is(err, driver.ErrResponseInvalid) {
		t.Errorf("Decide() = %v, want ErrResponseInvalid", err)
	}
	b.wantState("k", driver.StatePending)
}

// TestDecisionHitsTheAttemptThatWasLookedAt: another one may be open by then.
func TestDecisionHitsTheAttemptThatWasLookedAt(t *testing.T) {
	b := setup(t, parts{})
	id := idem.NewKeyID("m1", "k")
	first := b.interrupted("k", "a")
	if _, err := b.decide("k", idem.NotApplied()); err != nil {
		t.Fatal(err)
	}
	second := b.interrupted("k", "a")
	if _, err := b.engine.Decide(t.Context(), id, first, idem.NotApplied(), byOps, &b.policy); !errors.Is(err, idem.ErrNotOpen) {
		t.Errorf("Decide() of attempt 1 = %v, want ErrNotOpen", err)
	}
	b.wantState("k", driver.StatePending)
	rec, err := b.engine.Decide(t.Context(), id, second, idem.Applied(created(70)), byOps, &b.policy)
	if err != nil || rec.State != driver.StateCompleted || rec.Attempt != second {
		t.Errorf("Decide() of attempt 2 = %+v, %v", rec, err)
	}
}

// TestResolveRefusesBeforeTheLock: what needs no lock takes none.
func TestResolveRefusesBeforeTheLock(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(*bundle) *idem.Policy
		want    error // nil: any error
	}{
		"no policy": {func(*bundle) *idem.Policy { return nil }, nil},
		"invalid policy": {func(b *bundle) *idem.Policy {
			b.policy.HandlerTimeout = -1
			return &b.policy
		}, nil},
		"closed engine": {func(b *bundle) *idem.Policy {
			_ = b.engine.Close(b.Context())
			return &b.policy
		}, driver.ErrUnavailable},
		"store away": {func(b *bundle) *idem.Policy {
			b.faults.FailBefore("Get", idemtest.Every, nil)
			return &b.policy
		}, driver.ErrUnavailable},
		"completed key": {func(b *bundle) *idem.Policy {
			if _, err := b.decide("k", idem.Applied(created(70))); err != nil {
				b.Fatal(err)
			}
			return &b.policy
		}, idem.ErrNotOpen},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{})
			b.interrupted("k", "a")
			policy := tt.prepare(b)
			taken := b.locks.Calls("TryAcquire")
			_, err := b.engine.Resolve(t.Context(), idem.NewKeyID("m1", "k"), policy)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("Resolve() = %v, want %v", err, tt.want)
			}
			if n := b.locks.Calls("TryAcquire") - taken; n != 0 {
				t.Errorf("the lock was asked for %d times, want 0", n)
			}
		})
	}
}

// TestResolveGoesToItsEnd: once the resolver is asked, its caller may leave. Events have the
// route of the record.
func TestResolveGoesToItsEnd(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	b := setup(t, parts{policy: func(p *idem.Policy) {
		p.InDoubt = idem.AskResolver(func(ctx context.Context, _ idem.Interrupted) (idem.Resolution, error) {
			leave()
			return idem.Applied(created(70)), ctx.Err()
		})
	}})
	b.interrupted("k", "a")
	b.policy.Name = "sweeper"
	rec, err := b.engine.Resolve(ctx, idem.NewKeyID("m1", "k"), &b.policy)
	if err != nil || rec.State != driver.StateCompleted {
		t.Errorf("Resolve() = %v, %v, want completed", rec.State, err)
	}
	for _, ev := range b.events {
		if by := map[telemetry.EventType]string{telemetry.EventResolved: "resolver"}[ev.Type]; ev.Route != rec.Route || ev.By != by {
			t.Errorf("event %v is of route %q by %q, want %q by %q", ev.Type, ev.Route, ev.By, rec.Route, by)
		}
	}
	if b.saw(telemetry.EventInterrupted) != 1 || b.saw(telemetry.EventResolved) != 1 {
		t.Errorf("events = %v, want one EventInterrupted and one EventResolved", b.events)
	}
}
