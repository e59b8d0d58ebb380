package idem_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// The deadline ends the handler's context and nothing else. A handler that goes on
// holds its lock until it returns, whether it has looked at its context or not.
func TestLockOutlivesTheDeadline(t *testing.T) {
	for name, awaitDeadline := range map[string]func(context.Context){
		"of a handler that waits for its context": func(ctx context.Context) { <-ctx.Done() },
		"of a handler that does not look at it":   func(context.Context) { time.Sleep(2 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, parts{policy: func(p *idem.Policy) { p.HandlerTimeout = time.Second }})
				var id driver.KeyID
				held := func() bool {
					synctest.Wait() // for all that the deadline has set off
					_, held := b.locker.Holder(id)
					return held
				}
				res, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
					x, _ := idem.FromContext(ctx)
					id = x.KeyID
					awaitDeadline(ctx)
					for _, late := range []time.Duration{0, time.Minute} {
						time.Sleep(late)
						if !held() {
							t.Errorf("%v after the deadline the lock is free, and the handler runs", late)
						}
					}
					return b.pay(ctx)
				})
				b.wantPaid(res, err, 1, false)
				if held() {
					t.Error("the lock is still held after the handler has returned")
				}
			})
		})
	}
}
