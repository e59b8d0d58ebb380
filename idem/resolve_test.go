package idem_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// interrupted leaves the record of a holder that began and died: its lock is
// free again.
func (b *bundle) interrupted(key, body string) driver.Attempt {
	b.Helper()
	ctx := context.Background()
	id := idem.NewKeyID("m1", idem.Key(key))
	lease := b.hold(key)
	attempt := b.begin(id, body, lease.Fence())
	if err := lease.Release(ctx); err != nil {
		b.Fatal(err)
	}
	return attempt
}

func (b *bundle) begin(id driver.KeyID, body string, fence driver.Fence) driver.Attempt {
	b.Helper()
	fp, _ := fingerprintOf("http", body)(1)
	got, err := b.store.Begin(context.Background(), id, driver.BeginRequest{Kind: b.kind(), Route: b.policy.Name,
		Fence: fence, Nonce: driver.NewNonce(), Fingerprint: fp,
		ResultTTL: b.policy.ResultTTL, KeyTTL: b.policy.KeyTTL})
	if err != nil || !got.Begun {
		b.Fatalf("Begin() = %+v, %v", got, err)
	}
	return got.Record.Attempt
}

func TestInterruptedWithoutResolverIsUnknown(t *testing.T) {
	for name, doubt := range map[string]idem.InDoubt{"leave unknown": idem.LeaveUnknown(), "nil resolver": idem.AskResolver(nil)} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = doubt }})
			b.interrupted("k", "a")
			for range 2 {
				b.wantRefusal("k", "a", idem.CodeOutcomeUnknown)
			}
			b.wantRefusal("k", "b", idem.CodeKeyReused)
			b.wantRuns(0)
			b.wantState("k", driver.StateUnknown)
		})
	}
}

func TestResolverSettlesAnInterruptedAttempt(t *testing.T) {
	var verdict func(idem.Interrupted) (idem.Resolution, error)
	var asked []idem.Interrupted
	b := setup(t, parts{policy: func(p *idem.Policy) {
		p.ResolverTimeout = patience
		p.InDoubt = idem.AskResolver(func(ctx context.Context, in idem.Interrupted) (idem.Resolution, error) {
			if x, ok := idem.FromContext(ctx); !ok || x.Fence != in.Fence || x.OperationID != in.OperationID {
				t.Errorf("resolver's execution = %+v, want the fence and operation of %+v", x, in)
			}
			asked = append(asked, in)
			return verdict(in)
		})
	}})

	t.Run("applied: stored and replayed", func(t *testing.T) {
		attempt := b.interrupted("applied", "a")
		verdict = func(idem.Interrupted) (idem.Resolution, error) { return idem.Applied(created(70)), nil }
		b.wantPayment("applied", "a", 70, true)
		in := asked[len(asked)-1]
		if in.Attempt != attempt || !attempt.Fence.Before(in.Fence) || in.Route != "POST /pay" {
			t.Errorf("resolver was asked %+v about %+v", in, attempt)
		}
		n := len(asked)
		b.wantPayment("applied", "a", 70, true)
		if len(asked) != n {
			t.Error("a settled attempt was resolved again")
		}
	})
	t.Run("applied, and the response is not known", func(t *testing.T) {
		b.interrupted("omitted", "a")
		verdict = func(idem.Interrupted) (idem.Resolution, error) {
			return idem.Applied(idem.Response{Omitted: true}), nil
		}
		b.wantRefusal("omitted", "a", idem.CodeResultUnavailable)
		b.wantState("omitted", driver.StateCompleted)
	})
	t.Run("not applied: runs again", func(t *testing.T) {
		b.interrupted("free", "a")
		verdict = func(idem.Interrupted) (idem.Resolution, error) { return idem.NotApplied(), nil }
		res := b.wantPayment("free", "a", 1, false)
		if res.Attempt != 2 {
			t.Errorf("attempt = %d, want 2", res.Attempt)
		}
	})
	unknowns := map[string]func(idem.Interrupted) (idem.Resolution, error){
		"still unknown": func(idem.Interrupted) (idem.Resolution, error) { return idem.StillUnknown(), nil },
		"error":         func(idem.Interrupted) (idem.Resolution, error) { return idem.NotApplied(), errors.New("boom") },
		"panic":         func(idem.Interrupted) (idem.Resolution, error) { panic("boom") },
	}
	for name, v := range unknowns {
		t.Run(name+": stays unknown, and is asked again", func(t *testing.T) {
			b.interrupted(name, "a")
			verdict = v
			runs := b.runs.Load()
			b.wantRefusal(name, "a", idem.CodeOutcomeUnknown)
			b.wantState(name, driver.StateUnknown)
			b.wantRuns(runs)
			verdict = func(idem.Interrupted) (idem.Resolution, error) { return idem.Applied(created(71)), nil }
			b.wantPayment(name, "a", 71, true)
		})
	}
}

// TestResolverThatOutlivesItsLeaseDecidesNothing: by then the next holder may
// be asking its own.
func TestResolverThatOutlivesItsLeaseDecidesNothing(t *testing.T) {
	var b *bundle
	b = setup(t, parts{policy: func(p *idem.Policy) {
		p.InDoubt = idem.AskResolver(func(_ context.Context, in idem.Interrupted) (idem.Resolution, error) {
			b.locker.Revoke(in.KeyID)
			return idem.NotApplied(), nil
		})
	}})
	b.interrupted("k", "a")
	b.wantRefusal("k", "a", idem.CodeOwnershipLost)
	if got := b.wantState("k", driver.StatePending); got.Attempt != 1 || b.saw(telemetry.EventResolved) != 0 {
		t.Errorf("attempt %d is pending after %d decisions, want the first, undecided", got.Attempt, b.saw(telemetry.EventResolved))
	}
	b.wantRuns(0)
}

// doubts are the ways to treat doubt without a person.
var doubts = map[string]idem.InDoubt{
	"ask":       resolverSays(idem.NotApplied()),
	"run again": idem.RunAgain(),
}

func TestPendingInAForeignDomainIsInProgress(t *testing.T) {
	for name, doubt := range doubts {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = doubt }})
			b.begin(idem.NewKeyID("m1", "k"), "a", driver.Fence{Domain: "elsewhere", Token: 1})
			b.wantRefusal("k", "a", idem.CodeInProgress)
			b.wantRefusal("k", "b", idem.CodeKeyReused)
			b.wantRuns(0)
		})
	}
}

// TestUnknownInAForeignDomainIsLeftUnknown: our fence shuts out nothing of what
// was sent under another domain's.
func TestUnknownInAForeignDomainIsLeftUnknown(t *testing.T) {
	for name, doubt := range doubts {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = doubt }})
			id := idem.NewKeyID("m1", "k")
			attempt := b.begin(id, "a", driver.Fence{Domain: "elsewhere", Token: 1})
			if _, err := b.store.Settle(context.Background(), id, driver.Settlement{Attempt: attempt, ID: attempt.Nonce, State: driver.StateUnknown}); err != nil {
				t.Fatal(err)
			}
			b.faults.FailBefore("DomainRetired", 1, nil)
			b.wantRefusal("k", "a", idem.CodeUnavailable)
			b.wantRefusal("k", "a", idem.CodeOutcomeUnknown)
			b.wantRuns(0)
		})
	}
}

// TestResolveUnderAnEarlierFenceAsksNothing: the lease of a sweeper or of a request may be over, and the next
// holder may have begun since. The resolver must not see the earlier fence.
func TestResolveUnderAnEarlierFenceAsksNothing(t *testing.T) {
	asked := false
	b := setup(t, parts{policy: func(p *idem.Policy) {
		p.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			asked = true
			return idem.NotApplied(), nil
		})
	}})
	earlier := b.interrupted("probe", "a").Fence
	id := idem.NewKeyID("m1", "k")
	later := b.begin(id, "a", driver.Fence{Domain: earlier.Domain, Token: 1 << 63})
	rec, err := b.engine.Resolve(context.Background(), id, &b.policy)
	b.wantRefused(err, idem.CodeOwnershipLost)
	if asked || rec.State != driver.StatePending || rec.Attempt != later {
		t.Errorf("Resolve() = %v attempt %v, asked %t, want %v as it was, and nothing asked", rec.State, rec.Attempt, asked, later)
	}
	for _, doubt := range []idem.InDoubt{b.policy.InDoubt, idem.RunAgain()} {
		b.policy.InDoubt = doubt
		b.wantRefusal("k", "a", idem.CodeOwnershipLost)
	}
	b.wantRuns(0)
}

// TestInDoubtIsResolvedUnderALaterFence: what the attempt has sent and not
// heard of carries its fence, so the resolver needs a later one.
func TestInDoubtIsResolvedUnderALaterFence(t *testing.T) {
	for _, tt := range []struct {
		name    string
		verdict idem.Resolution
		state   driver.State
		status  int
	}{
		{"applied", idem.Applied(created(70)), driver.StateCompleted, 201},
		{"not applied", idem.NotApplied(), driver.StateReleased, 500},
		{"still unknown", idem.StillUnknown(), driver.StateUnknown, 500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var mine, resolvers driver.Fence
			b := setup(t, parts{policy: func(p *idem.Policy) {
				p.InDoubt = idem.AskResolver(func(_ context.Context, in idem.Interrupted) (idem.Resolution, error) {
					resolvers = in.Fence
					if in.Response == nil || in.Response.Status != 500 {
						t.Errorf("resolver got response %v, want the attempt's own", in.Response)
					}
					return tt.verdict, nil
				})
			}})
			res, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
				x, _ := idem.FromContext(ctx)
				mine = x.Fence
				return idem.Response{Status: 500}, nil
			})
			if err != nil || res.Response.Status != tt.status {
				t.Errorf("Do() = %d, %v, want %d", res.Response.Status, err, tt.status)
			}
			if !mine.Before(resolvers) {
				t.Errorf("resolver ran under %v, the attempt under %v: want a later one", resolvers, mine)
			}
			b.wantState("k", tt.state)
		})
	}
}

func TestLeaseLostUnderTheHandler(t *testing.T) {
	id := idem.NewKeyID("m1", "k")
	loseThen := func(b *bundle, h idem.Handler) (idem.Result, error) {
		return b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
			b.locker.Revoke(id)
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, driver.ErrLeaseLost) {
				b.Errorf("handler was cancelled with %v, want %v", cause, driver.ErrLeaseLost)
			}
			if _, err := idem.CheckOwner(ctx); !errors.Is(err, driver.ErrLeaseLost) {
				b.Errorf("CheckOwner() = %v, want %v", err, driver.ErrLeaseLost)
			}
			return h(ctx)
		})
	}
	t.Run("who finished may report the truth", func(t *testing.T) {
		b := setup(t, parts{})
		res, err := loseThen(b, b.pay)
		b.wantPaid(res, err, 1, false)
		b.wantPayment("k", "a", 1, true)
	})
	t.Run("who was decided upon gets the decision", func(t *testing.T) {
		b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = resolverSays(idem.Applied(created(70))) }})
		res, err := loseThen(b, func(ctx context.Context) (idem.Response, error) {
			// Another instance comes by: its lock, its resolver.
			other := b.another(b.locker, b.store)
			res, err := other.Do(context.Background(), b.operation("k", "a"), b.pay)
			b.wantPaid(res, err, 70, true)
			return b.pay(ctx)
		})
		b.wantPaid(res, err, 70, true)
	})
	t.Run("who was superseded is told so", func(t *testing.T) {
		b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = idem.RunAgain() }})
		_, err := loseThen(b, func(ctx context.Context) (idem.Response, error) {
			other := b.another(b.locker, b.store)
			_, err := other.Do(context.Background(), b.operation("k", "a"), answers(429))
			b.wantDoubt(err, "k", time.Second) // the attempt before it is in doubt
			return b.pay(ctx)
		})
		b.wantRefused(err, idem.CodeOwnershipLost)
		b.wantState("k", driver.StateUnknown)
	})
	t.Run("who was superseded without a response is told so", func(t *testing.T) {
		b := setup(t, parts{})
		_, err := loseThen(b, func(ctx context.Context) (idem.Response, error) {
			if _, err := b.decide("k", idem.Applied(idem.Response{Omitted: true})); err != nil {
				t.Error(err)
			}
			return b.pay(ctx)
		})
		b.wantRefused(err, idem.CodeResultUnavailable)
	})
	t.Run("in doubt is ownership lost", func(t *testing.T) {
		b := setup(t, parts{})
		_, err := loseThen(b, answers(500))
		b.wantRefused(err, idem.CodeOwnershipLost)
		b.wantState("k", driver.StateUnknown)
		b.wantEvents(telemetry.EventOwnershipLost, 1)
		_, err = b.do("k", "a") // what it answered was about its lease
		b.wantRefused(err, idem.CodeOutcomeUnknown)
	})
	t.Run("a refusal seen halfway is in doubt", func(t *testing.T) {
		b := setup(t, parts{})
		_, err := loseThen(b, answers(403))
		b.wantRefused(err, idem.CodeOwnershipLost)
		b.wantState("k", driver.StateUnknown)
	})
}

// TestResolversThatNeverReturnAreBounded: each request of a key in doubt asks the resolver, and one that
// ignores its context stays. Beyond a bound no more of its route are asked until one returns. Other routes are
// not concerned.
func TestResolversThatNeverReturnAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		var asked atomic.Int64
		b := setup(t, parts{policy: func(p *idem.Policy) {
			p.InDoubt = idem.AskResolver(func(_ context.Context, in idem.Interrupted) (idem.Resolution, error) {
				if in.Route == "POST /pay" {
					asked.Add(1)
					<-end
				}
				return idem.NotApplied(), nil
			})
		}})
		b.interrupted("k", "a")
		const most = 64 // maxResolversBehind
		for range most + 20 {
			b.wantRefusal("k", "a", idem.CodeOutcomeUnknown)
		}
		if asked.Load() != most {
			t.Errorf("the resolver was asked %d times, want %d", asked.Load(), most)
		}
		b.policy.Name = "POST /refund"
		b.interrupted("k2", "a")
		b.wantPayment("k2", "a", 1, false)
		b.policy.Name = "POST /pay"
		close(end)
		synctest.Wait()
		b.wantPayment("k", "a", 2, false)
	})
}
