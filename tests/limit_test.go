package tests

import (
	"context"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A scope that has as many executions open as it may is told to come back, over
// each transport, and is served when one of them is through.
func TestTooManyOpenIsRefused(t *testing.T) {
	t.Parallel()
	overEach(t, func(t *testing.T, via transport) {
		e, err := idem.New(memorylock.New(), memorystore.New(), idem.WithMaxOpenExecutionsPerScope(1))
		if err != nil {
			t.Fatal(err)
		}
		running, finish := make(chan struct{}, 2), make(chan struct{})
		c := serve(t, via, e, idem.Policy{}, func(context.Context) (string, bool) {
			running <- struct{}{}
			<-finish
			return "paid", true
		})
		done := c.paying("first", amount, "")
		happens(t, "first payment", running)
		refused(t, "payment beyond the limit", c.pay("second", amount, ""), "too-many-open")
		refused(t, "duplicate of the one that runs", c.pay("first", amount, ""), "in-progress")
		close(finish)
		if a := <-done; !a.paid() {
			t.Errorf("first payment = %v, want it made", a)
		}
		if a := c.payUntil(patience, "second", amount, ""); !a.paid() || a.replayed {
			t.Errorf("second payment = %v, want it made now", a)
		}
		if a := c.payUntil(patience, "first", amount, ""); !a.paid() || !a.replayed {
			t.Errorf("repeat of the first = %v, want it replayed", a)
		}
	})
}
