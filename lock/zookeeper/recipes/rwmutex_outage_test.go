package recipes

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// The lock is released while the waiter is not connected.
func TestLineReleasedDuringOutage(t *testing.T) {
	onEachLine(t, func(r *rig, wants, bars ask) {
		held := r.queue(bounded(r), bars).granted()
		c := r.queue(bounded(r), wants)
		r.watching(r.Client)
		r.Proxy.Refuse(true)
		r.Proxy.Cut()
		recipetest.Release(r, held)
		c.wantWaiting()
		r.Proxy.Refuse(false)
		r.wantGood(c.granted(), 0)
		recipetest.Release(r, c.lease)
	})
}

// An acquire that begins without a server ends when there is one again, and one
// that is out of patience before leaves nothing.
func TestLineAcquireAfterLostServer(t *testing.T) {
	onEachLine(t, func(r *rig, wants, _ ask) {
		r.Proxy.Refuse(true)
		r.Proxy.Cut()
		until(r, "outage noticed", func() bool { return sessionOf(r.Client).Session.Status.Usable() != nil })
		ctx, cancel := context.WithCancel(bounded(r))
		defer cancel()
		short, long := r.call(ctx, wants), r.call(bounded(r), wants)
		short.wantWaiting()
		cancel()
		await(r, "answer", short.answered)
		if !errors.Is(short.err, driver.ErrUnavailable) || !errors.Is(short.err, context.Canceled) {
			r.Errorf("acquire = %v, %v; want %v and %v", short.lease, short.err, driver.ErrUnavailable, context.Canceled)
		}
		long.wantWaiting()
		r.Proxy.Refuse(false)
		r.wantGood(long.granted(), 0)
		recipetest.Release(r, long.lease)
	})
}
