package idem_test

import (
	"context"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// replicatedBundle is a bundle whose store has a replica that lags behind.
type replicatedBundle struct {
	*bundle
	replicated *idemtest.ReplicatedStore
}

func setupReplicated(t *testing.T, policy func(*idem.Policy)) *replicatedBundle {
	t.Helper()
	b := &replicatedBundle{bundle: setup(t, parts{policy: policy})}
	b.replicated = idemtest.NewReplicatedStore(func() driver.Store { return memorystore.New() })
	b.store = b.replicated
	b.engine = b.another(b.locker, b.store, idem.WithObserver(b.observe))
	return b
}

// TestStoreFallsBackUnderAHolder: the replica that is promoted while a handler runs
// has what was there before its attempt. The client is told of the payment, so a
// repeat has to be told of the same one.
func TestStoreFallsBackUnderAHolder(t *testing.T) {
	id := idem.NewKeyID("m1", "k")
	for name, tt := range map[string]struct {
		policy func(*idem.Policy)
		before func(b *replicatedBundle) // what the replica still got
	}{
		"to an issued token": {func(p *idem.Policy) { p.IssuedTokens = true }, func(b *replicatedBundle) { b.issue("k") }},
		"to a token that was given back": {func(p *idem.Policy) { p.IssuedTokens = true }, func(b *replicatedBundle) {
			b.issue("k")
			b.wantAnswer("k", "a", 429)
			b.wantState("k", driver.StateIssued)
		}},
		"to no record": {nil, func(*replicatedBundle) {}},
		"to a released attempt": {nil, func(b *replicatedBundle) {
			b.wantAnswer("k", "a", 429)
			b.wantState("k", driver.StateReleased)
		}},
		"to a pending attempt": {
			func(p *idem.Policy) { p.InDoubt = resolverSays(idem.NotApplied()) },
			func(b *replicatedBundle) { b.interrupted("k", "a") },
		},
	} {
		for lease, lost := range map[string]bool{"": false, ", and the lease is lost": true} {
			t.Run(name+lease, func(t *testing.T) {
				b := setupReplicated(t, tt.policy)
				tt.before(b)
				b.replicated.Sync()
				res, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
					b.replicated.Failover()
					if lost {
						b.locker.Revoke(id)
					}
					return b.pay(ctx)
				})
				b.wantPaid(res, err, 1, false)
				b.wantEvents(telemetry.EventRepaired, 1)
				b.wantPayment("k", "a", 1, true)
				b.wantRuns(1)
			})
		}
	}
}

// TestStoreFallsBackUnderAnAttemptWithoutEffect: the key is given back all the same,
// and what had begun is refused should it arrive late.
func TestStoreFallsBackUnderAnAttemptWithoutEffect(t *testing.T) {
	b := setupReplicated(t, func(p *idem.Policy) { p.IssuedTokens = true })
	b.issue("k")
	b.replicated.Sync()
	res, err := b.doWith("k", "a", func(context.Context) (idem.Response, error) {
		b.replicated.Failover()
		return idem.Response{Status: 429}, nil
	})
	if err != nil || res.Response.Status != 429 {
		t.Errorf("Do() = %d, %v, want 429", res.Response.Status, err)
	}
	if got := b.wantState("k", driver.StateIssued); got.Attempt != 1 || b.saw(telemetry.EventRepaired) != 1 {
		t.Errorf("attempt %d is stored after %d repairs, want the first and one", got.Attempt, b.saw(telemetry.EventRepaired))
	}
	b.wantPayment("k", "a", 1, false)
}

// TestReleaseWithoutTrustRepairsNothing: the holder has lost its lease, so a later attempt
// may have begun. It must not make the key free.
func TestReleaseWithoutTrustRepairsNothing(t *testing.T) {
	b := setupReplicated(t, nil)
	_, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		b.replicated.Failover()
		b.locker.Revoke(idem.NewKeyID("m1", "k"))
		idem.NoEffect(ctx)
		return idem.Response{Status: 429}, nil
	})
	b.wantRefused(err, idem.CodeOwnershipLost)
	b.wantState("k", driver.StateNone)
	b.wantEvents(telemetry.EventRepaired, 0)
}

// TestTrustIsAskedForWithEachTryToSettle: the lease is lost between two tries, so the second
// one must not write the lost record as released.
func TestTrustIsAskedForWithEachTryToSettle(t *testing.T) {
	for name, opts := range map[string][]idem.Option{
		"before the answer": nil,
		"after the answer":  {idem.WithSettleTimeout(time.Nanosecond)},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupReplicated(t, nil)
			b.faults = idemtest.NewFaultyStore(b.store)
			b.faults.Before("Settle", 1, func() error {
				b.locker.Revoke(idem.NewKeyID("m1", "k"))
				return errDown
			})
			b.engine = b.another(b.locker, b.faults, append(opts, idem.WithObserver(b.observe))...)
			_, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
				b.replicated.Failover()
				idem.NoEffect(ctx)
				return idem.Response{Status: 429}, nil
			})
			b.wantRefused(err, idem.CodeOwnershipLost)
			b.eventually("the attempt is over", func() bool { return b.saw(telemetry.EventSuperseded)+b.saw(telemetry.EventReleased) == 1 })
			b.wantState("k", driver.StateNone)
			b.wantEvents(telemetry.EventRepaired, 0)
		})
	}
}

// TestSuccessThatCannotBeStoredIsReported: a later holder's attempt is there.
func TestSuccessThatCannotBeStoredIsReported(t *testing.T) {
	b := setupReplicated(t, nil)
	id := idem.NewKeyID("m1", "k")
	res, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		b.replicated.Failover()
		b.begin(id, "a", driver.Fence{Domain: "elsewhere", Token: 1})
		return b.pay(ctx)
	})
	b.wantPaid(res, err, 1, false)
	if b.saw(telemetry.EventUnstored) != 1 || b.saw(telemetry.EventSuperseded) != 0 {
		t.Errorf("%d events %v and %d %v, want one and none", b.saw(telemetry.EventUnstored), telemetry.EventUnstored,
			b.saw(telemetry.EventSuperseded), telemetry.EventSuperseded)
	}
	b.wantState("k", driver.StatePending)
}

// TestStoreFallsBackWhileAnAttemptIsResolved: the replica that is promoted while the
// resolver is asked has what was there before the attempt that the resolver tells of.
// Its word counts all the same.
func TestStoreFallsBackWhileAnAttemptIsResolved(t *testing.T) {
	id := idem.NewKeyID("m1", "k")
	applied := func() (idem.Resolution, error) { return idem.Applied(created(70)), nil }
	for to, leave := range map[string]func(b *replicatedBundle){ // what the replica still got
		"no record":          func(*replicatedBundle) {},
		"a released attempt": func(b *replicatedBundle) { _, _ = b.doWith("k", "a", answers(429)) },
		"a pending attempt":  func(b *replicatedBundle) { b.interrupted("k", "a") },
		"a pending attempt of another domain": func(b *replicatedBundle) {
			b.begin(id, "a", driver.Fence{Domain: "elsewhere", Token: 1})
		},
	} {
		for name, tt := range map[string]struct {
			verdict func() (idem.Resolution, error)
			want    driver.State
		}{
			"applied":       {applied, driver.StateCompleted},
			"still unknown": {func() (idem.Resolution, error) { return idem.StillUnknown(), nil }, driver.StateUnknown},
		} {
			t.Run("to "+to+", "+name, func(t *testing.T) {
				var verdict func() (idem.Resolution, error)
				b := setupReplicated(t, func(p *idem.Policy) {
					p.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) { return verdict() })
				})
				leave(b)
				b.replicated.Sync()
				foreign := to == "a pending attempt of another domain"
				if foreign {
					if err := b.store.RetireDomain(t.Context(), "elsewhere", driver.Decision{By: "test"}); err != nil {
						t.Fatal(err)
					}
				}
				verdict = func() (idem.Resolution, error) { return idem.NotApplied(), nil }
				_, _ = b.doWith("k", "a", answers(500)) // becomes a later attempt, which verdict releases
				b.interrupted("k", "a")
				verdict = func() (idem.Resolution, error) { b.replicated.Failover(); return tt.verdict() }
				res, err := b.do("k", "a")
				b.wantRuns(0)
				switch {
				case foreign: // it proves nothing of that one
					b.wantRefused(err, idem.CodeInProgress)
					return
				case tt.want == driver.StateCompleted:
					b.wantPaid(res, err, 70, true)
				default:
					b.wantRefused(err, idem.CodeOutcomeUnknown)
				}
				b.wantState("k", tt.want)
				b.wantEvents(telemetry.EventRepaired, 1)
			})
		}
	}
}

// TestStoreFallsBackWhileAPersonDecides: likewise.
func TestStoreFallsBackWhileAPersonDecides(t *testing.T) {
	b := setupReplicated(t, nil)
	attempt := b.interrupted("k", "a")
	settles := idemtest.NewFaultyStore(b.store)
	settles.Before("Settle", 1, func() error { b.replicated.Failover(); return nil })
	rec, err := b.another(b.locker, settles).Decide(t.Context(), idem.NewKeyID("m1", "k"), attempt,
		idem.Applied(created(70)), driver.Decision{By: "ops"}, &b.policy)
	if err != nil || rec.State != driver.StateCompleted {
		t.Fatalf("Decide() = %v, %v, want completed", rec.State, err)
	}
	b.wantPayment("k", "a", 70, true)
}

// TestReleaseThatArrivesAfterALossWritesNoRecord: a resolver's release is still on its way when
// the store loses the record. The late holder may have undone the attempt meanwhile, and another
// attempt may have run with its number. So the release must not bring the number back.
func TestReleaseThatArrivesAfterALossWritesNoRecord(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = resolverSays(idem.NotApplied()) }})
	b.interrupted("k", "a")
	late := b.faults.DeliverLate("Settle", 1, nil)
	b.wantRefusal("k", "a", idem.CodeUnavailable)
	b.forget("k")
	if err := late.Deliver(); err != nil {
		t.Errorf("late Settle = %v", err)
	}
	b.wantState("k", driver.StateNone)
	b.wantRuns(0)
}
