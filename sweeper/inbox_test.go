package sweeper_test

import (
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
		b.inbox.fails(errors.New("full"))
		stop := b.run(sweeper.WithMaxBackoff(time.Minute))
		defer stop()
		time.Sleep(time.Minute)
		b.wantState("k", driver.StateUnknown)
		b.inbox.fails(nil)
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
		b.inbox.fails(errors.New("full"))
		defer b.run()()
		time.Sleep(15 * time.Second)
		b.wantState("young", driver.StateUnknown)
		if sum := b.sum(); sum.Unqueued == 0 || sum.Failed != 0 {
			t.Errorf("%d passes told of the inbox, %d of failures", sum.Unqueued, sum.Failed)
		}
	})
}
