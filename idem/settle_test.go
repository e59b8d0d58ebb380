package idem_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// TestSettledByOthersBehindTheAnswer: somebody decides about the attempt while its outcome is
// being saved in the background. The decision stands, and the marker follows it.
func TestSettledByOthersBehindTheAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		lost   bool // the lease, so the client was not told the outcome
		decide driver.State
		event  telemetry.EventType
		marker driver.State
	}{
		"released, and the client has a success":     {false, driver.StateReleased, telemetry.EventUnstored, driver.StateNone},
		"completed, and the client has a success":    {false, driver.StateCompleted, telemetry.EventSuperseded, driver.StateCompleted},
		"released, and the client was told nothing":  {true, driver.StateReleased, telemetry.EventSuperseded, driver.StateUnknown},
		"completed, and the client was told nothing": {true, driver.StateCompleted, telemetry.EventSuperseded, driver.StateUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupMarked(t, nil)
			broken := idemtest.NewFaultyStore(b.lossy)
			broken.FailBefore("Settle", idemtest.Every, nil)
			b.engine = b.another(b.marks, broken, idem.WithObserver(b.observe), idem.WithSettleTimeout(time.Millisecond))
			res, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
				if tt.lost {
					b.loseLease("k")
				}
				return b.pay(ctx)
			})
			if tt.lost {
				b.wantRefused(err, idem.CodeOwnershipLost)
			} else {
				b.wantPaid(res, err, 1, false)
			}
			id := idem.NewKeyID("m1", "k")
			rec, err := b.store.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			s := driver.Settlement{Attempt: rec.Attempt, ID: driver.NewNonce(), State: tt.decide, ResultTTL: idem.DefaultResultTTL, KeyTTL: idem.DefaultKeyTTL}
			if tt.decide == driver.StateCompleted {
				s.Response = &driver.Response{Status: 201, Body: []byte("payment 70")}
			}
			if got, err := b.store.Settle(t.Context(), id, s); err != nil || !got.Settled {
				t.Fatalf("Settle() = %+v, %v", got, err)
			}
			broken.Heal("Settle")
			b.eventually("saving ends", func() bool { return b.saw(telemetry.EventUnstored)+b.saw(telemetry.EventSuperseded) > 0 })
			b.wantFree("k")
			if b.saw(tt.event) != 1 || b.saw(telemetry.EventCompleted) != 0 {
				t.Errorf("events = %v, want one of %v", b.events, tt.event)
			}
			b.wantState("k", tt.decide)
			b.wantMarker("k", tt.marker)
		})
	}
}

// TestOutcomeOfALostLeaseThatCannotBeSaved: the client is not told of a success that no record
// has, and which nobody reports as told.
func TestOutcomeOfALostLeaseThatCannotBeSaved(t *testing.T) {
	for name, tt := range map[string]struct {
		opts []idem.Option
		fail func(*bundle)
	}{
		"before the answer": {nil, func(b *bundle) { b.faults.FailBefore("Settle", idemtest.Every, driver.ErrCorruptRecord) }},
		"after the answer": {[]idem.Option{idem.WithSettleTimeout(time.Nanosecond)}, func(b *bundle) {
			b.faults.FailBefore("Settle", idemtest.Every, driver.ErrCorruptRecord)
			b.faults.FailBefore("Settle", 1, nil)
		}},
		"engine closed": {[]idem.Option{idem.WithSettleTimeout(time.Nanosecond)}, func(b *bundle) { b.faults.FailBefore("Settle", idemtest.Every, nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{opts: tt.opts})
			tt.fail(b)
			_, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
				b.locker.Revoke(idem.NewKeyID("m1", "k"))
				return b.pay(ctx)
			})
			b.wantRefused(err, idem.CodeOwnershipLost)
			if name == "engine closed" {
				_ = b.engine.Close(ended())
			}
			b.eventually("saving is given up", func() bool { return b.saw(telemetry.EventSettleAbandoned) == 1 })
			b.wantEvents(telemetry.EventUnstored, 0)
		})
	}
}

// TestCloseGivesUpSavingButLeavesTheLock: after Close has given up, a request does not use up its settle time-out.
func TestCloseGivesUpSavingButLeavesTheLock(t *testing.T) {
	for when, timeout := range map[string]time.Duration{"before the answer": 24 * time.Hour, "after the answer": time.Millisecond} {
		t.Run(when, func(t *testing.T) {
			b := setup(t, parts{opts: []idem.Option{idem.WithSettleTimeout(timeout)}})
			b.faults.FailBefore("Settle", idemtest.Every, nil)
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				b.wantPayment("k", "a", 1, false)
			}()
			if when == "after the answer" {
				<-answered
			}
			b.eventually("the outcome is being saved", func() bool { return b.faults.Calls("Settle") > 0 })
			if err := b.engine.Close(ended()); err == nil {
				t.Error("Close() = nil with an outcome unsaved, want an error")
			}
			<-answered
			// The client has a success, so the loss is the last event.
			b.eventually("saving is given up", func() bool { return b.saw(telemetry.EventUnstored) == 1 })
			b.wantEvents(telemetry.EventSettleAbandoned, 1)
			if !b.held("k") {
				t.Error("the lock was given back with the outcome unsaved")
			}
		})
	}
}

// TestSavingGoesOnHoweverOftenTheStoreFails, because only a store that breaks its contract is
// given up.
func TestSavingGoesOnHoweverOftenTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, parts{})
		b.faults.FailBefore("Settle", idemtest.Every, nil)
		b.wantPayment("k", "a", 1, false)
		time.Sleep(time.Hour)
		if !b.held("k") || b.saw(telemetry.EventSettleAbandoned) != 0 {
			t.Errorf("the lock is held: %t, after %d calls of Settle; want it held, and nothing given up", b.held("k"), b.faults.Calls("Settle"))
		}
		b.faults.Heal("Settle")
		time.Sleep(time.Minute)
		b.wantPayment("k", "a", 1, true)
	})
}

// TestGateIsShutWhileAPanicIsSettled: a goroutine that the handler has left behind sends nothing.
func TestGateIsShutWhileAPanicIsSettled(t *testing.T) {
	b := setup(t, parts{})
	var left context.Context
	b.faults.Before("Settle", 1, func() error {
		if _, err := idem.CheckOwner(left); !errors.Is(err, idem.ErrExecutionEnded) {
			t.Errorf("CheckOwner() = %v, want %v", err, idem.ErrExecutionEnded)
		}
		return nil
	})
	func() {
		defer func() { _ = recover() }()
		_, _ = b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
			left = ctx
			panic("boom")
		})
	}()
	b.wantState("k", driver.StateUnknown)
}

// TestDoubtIsAnsweredWhenTheResolverCannotBeAsked: the lock or the store is away right after the
// attempt was settled.
func TestDoubtIsAnsweredWhenTheResolverCannotBeAsked(t *testing.T) {
	for name, fail := range map[string]func(*bundle){
		"lock":  func(b *bundle) { b.locks.FailBefore("TryAcquire", 2, nil) },
		"store": func(b *bundle) { b.faults.FailBefore("Get", 2, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = resolverSays(idem.Applied(created(70))) }})
			fail(b)
			b.wantAnswer("k", "a", 500)
			b.wantFree("k")
			b.wantPayment("k", "a", 70, true)
		})
	}
}

// TestOutcomeOfAnotherInstanceIsReplayed: it completes the key between the read and the lock, and may still have
// the lock.
func TestOutcomeOfAnotherInstanceIsReplayed(t *testing.T) {
	for name, lock := range map[string]error{"its lock is free": nil, "it has the lock": driver.ErrLocked} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{})
			b.faults.Before("Begin", 1, func() error {
				b.locker.Revoke(idem.NewKeyID("m1", "k")) // an outcome needs no lease
				return nil
			})
			b.locks.Before("TryAcquire", 1, func() error {
				res, err := b.another(b.locker, b.store).Do(t.Context(), b.operation("k", "a"), b.pay)
				b.wantPaid(res, err, 1, false)
				return lock
			})
			b.wantPayment("k", "a", 1, true)
			b.wantEvents(telemetry.EventReplayed, 1)
			b.wantRuns(1)
		})
	}
}

// TestOtherKindUnderARunningKeyIsRefused, and does not wait for it.
func TestOtherKindUnderARunningKeyIsRefused(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
	finish := b.started("k", "a", b.pay)
	token := b.policy
	token.IssuedTokens = true
	op := b.operation("k", "a")
	op.Policy = &token
	_, err := b.engine.Do(t.Context(), op, b.pay)
	b.wantRefused(err, idem.CodeTokenUnknown)
	res, err := finish()
	b.wantPaid(res, err, 1, false)
}

// changing is a store in which others release the key again and again.
type changing struct{ driver.Store }

func (s changing) Begin(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
	rec, err := s.Get(ctx, id)
	rec.State = driver.StateReleased
	return driver.BeginResult{Record: rec}, err
}

// TestRecordThatKeepsChangingLeavesNoLock: the request gives up, and the lock is free again.
func TestRecordThatKeepsChangingLeavesNoLock(t *testing.T) {
	b := setup(t, parts{})
	b.engine = b.another(b.locker, changing{b.store}, idem.WithObserver(b.observe))
	b.wantRefusal("k", "a", idem.CodeInProgress)
	b.wantRuns(0)
	b.wantFree("k")
}

// slowLink is a store whose settlements take as long as their responses need on a slow link.
type slowLink struct {
	driver.Store
	rate int // bytes a second
}

func (s slowLink) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
	if st.Response != nil {
		select {
		case <-time.After(time.Duration(len(st.Response.Body)) * time.Second / time.Duration(s.rate)):
		case <-ctx.Done():
			return driver.SettleResult{}, ctx.Err()
		}
	}
	return s.Store.Settle(ctx, id, st)
}

// TestALargeResponseIsStoredOverASlowLink: it takes longer than the store's time-out. The client waits for the
// settle time-out and no longer.
func TestALargeResponseIsStoredOverASlowLink(t *testing.T) {
	for name, tt := range map[string]struct {
		size    int
		want    time.Duration // until the answer
		delayed int           // events
	}{
		"within the settle time-out": {384 << 10, 1500 * time.Millisecond, 0},
		"in the background":          {1 << 20, 2 * time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, parts{})
				e := b.another(b.locks, slowLink{b.store, 256 << 10}, idem.WithObserver(b.observe))
				began := time.Now()
				res, err := e.Do(t.Context(), b.operation("k", "a"), func(context.Context) (idem.Response, error) {
					return idem.Response{Status: 201, Body: make([]byte, tt.size)}, nil
				})
				if took := time.Since(began).Round(100 * time.Millisecond); err != nil || res.Response.Status != 201 || took != tt.want {
					t.Errorf("Do() = %d, %v after %v, want 201 after %v", res.Response.Status, err, took, tt.want)
				}
				time.Sleep(10 * time.Second)
				if rec, err := b.store.Get(t.Context(), idem.NewKeyID("m1", "k")); err != nil || rec.State != driver.StateCompleted {
					t.Errorf("Get() = %v, %v, want the response stored", rec.State, err)
				}
				if n := b.saw(telemetry.EventSettleDelayed); n != tt.delayed {
					t.Errorf("%d events that the settlement is delayed, want %d", n, tt.delayed)
				}
			})
		})
	}
}
