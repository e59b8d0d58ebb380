package sweeper_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

func TestInboxThatFailsIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		b.interrupted("k")
		b.inbox.fail = errors.New("full")
		stop := b.run(sweeper.WithMaxBackoff(time.Minute))
		defer stop()
		time.Sleep(time.Minute)
		b.wantState("k", driver.StateUnknown)
		b.inbox.mu.Lock()
		b.inbox.fail = nil
		b.inbox.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if b.inbox.size() != 1 {
			t.Errorf("%d cases, want 1", b.inbox.size())
		}
	})
}

func TestForeignAttemptGoesToPeople(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, says(idem.NotApplied()))
		_, err := b.store.Begin(t.Context(), idOf("k"), driver.BeginRequest{Fence: driver.Fence{Domain: "burnt down", Token: 7}, Nonce: driver.NewNonce()})
		if err != nil {
			t.Fatal(err)
		}
		stop := b.run()
		defer stop()
		time.Sleep(time.Hour)
		b.wantState("k", driver.StatePending)
		if b.inbox.size() != 1 || b.inbox.cases[0].State != "pending" || b.inbox.cases[0].Fence != "burnt down/7" {
			t.Fatalf("cases = %+v", b.inbox.cases)
		}
		if err := b.store.RetireDomain(t.Context(), "burnt down", driver.Decision{By: "ops"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Minute)
		b.wantState("k", driver.StateReleased)
	})
}

// Older attempts without a resolver, which the full inbox does not take, do not keep
// the sweep from younger ones.
func TestFullInboxDoesNotStopTheSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		for i := range 2000 {
			b.interrupted(fmt.Sprint(i))
		}
		time.Sleep(10 * time.Second)
		b.interrupted("young")
		b.inbox.fail = errors.New("full")
		defer b.run()()
		time.Sleep(15 * time.Second)
		b.wantState("young", driver.StateUnknown)
		if sum := b.sum(); sum.Unqueued == 0 || sum.Failed != 0 {
			t.Errorf("%d passes told of the inbox, %d of failures", sum.Unqueued, sum.Failed)
		}
	})
}

// After the store's clock was set back, an open attempt of the future is too young to
// be listed.
func TestClockSetBackQueuesNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		store := &hidingStore{Store: b.store}
		b.listed = store
		defer b.run()()
		b.interrupted("k")
		time.Sleep(time.Minute)
		store.hide.Store(true)
		time.Sleep(time.Minute)
		store.hide.Store(false)
		time.Sleep(10 * time.Minute)
		if n := b.inbox.size(); n != 1 {
			t.Errorf("%d cases of one attempt, want 1", n)
		}
	})
}

// refusing is an inbox that can be listed, and takes or forgets nothing.
type refusing struct {
	*inbox
	offer, forget error
}

func (in refusing) OfferNamed(ctx context.Context, name string, data []byte) (bool, error) {
	if in.offer != nil {
		return false, in.offer
	}
	return in.inbox.OfferNamed(ctx, name, data)
}

func (in refusing) ForgetName(ctx context.Context, name string) error {
	if in.forget != nil {
		return in.forget
	}
	return in.inbox.ForgetName(ctx, name)
}

// A case that the inbox refuses is told of, also one that it does not forget.
func TestInboxThatRefusesIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		b.interrupted("k")
		stop := b.run()
		time.Sleep(time.Minute)
		stop()
		if b.inbox.size() != 1 {
			t.Fatalf("%d cases, want 1", b.inbox.size())
		}
		rec := b.wantState("k", driver.StateUnknown)
		if _, err := b.engine.Decide(t.Context(), idOf("k"), rec.Attempt, idem.NotApplied(), driver.Decision{By: "ops"}, &b.policy); err != nil {
			t.Fatal(err)
		}
		b.interrupted("other")
		unqueued := func(inbox sweeper.Inbox) int {
			before := b.sum().Unqueued
			defer b.run(sweeper.WithInbox(inbox))()
			time.Sleep(time.Minute)
			return b.sum().Unqueued - before
		}
		if n := unqueued(refusing{inbox: b.inbox, forget: errors.New("full")}); n == 0 {
			t.Error("no refusal to forget was told")
		}
		b.interrupted("third")
		if n := unqueued(refusing{inbox: b.inbox, offer: errors.New("full")}); n == 0 {
			t.Error("no refusal to take was told")
		}
		if n := unqueued(b.inbox); n != 0 {
			t.Errorf("%d refusals were told, want 0", n)
		}
		b.wantState("third", driver.StateUnknown)
		if b.inbox.size() != 3 {
			t.Errorf("%d cases, want one for each key", b.inbox.size())
		}
	})
}
