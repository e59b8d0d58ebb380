package recipes

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

// The lock is released while the waiter is not connected.
func TestLineReleasedDuringOutage(t *testing.T) {
	onEachLine(t, func(r *rig, wants, bars ask) {
		held := r.queue(bounded(r), bars).granted()
		c := r.queue(bounded(r), wants)
		r.watching(r.c)
		r.proxy.Refuse(true)
		r.proxy.Cut()
		r.release(held)
		c.wantWaiting()
		r.proxy.Refuse(false)
		r.wantGood(c.granted(), 0)
		r.release(c.lease)
	})
}

// The connection breaks and comes back while the lock is held: the place stays.
func TestLineReconnectWaiting(t *testing.T) {
	onEachLine(t, func(r *rig, wants, bars ask) {
		held := r.queue(bounded(r), bars).granted()
		c := r.queue(bounded(r), wants)
		r.watching(r.c)
		before := r.places()
		r.proxy.Cut()
		until(r, "connected again", func() bool { return r.proxy.Accepted() > 1 && sessionOf(r.c).Usable() == nil })
		if after := r.places(); len(after) != 2 || after[1].Name != before[1].Name {
			r.Errorf("line is %v, want %v", after, before)
		}
		c.wantWaiting()
		r.release(held)
		r.wantGood(c.granted(), 0)
		r.release(c.lease)
	})
}

// An acquire that begins without a server ends when there is one again, and one
// that is out of patience before leaves nothing.
func TestLineAcquireAfterLostServer(t *testing.T) {
	onEachLine(t, func(r *rig, wants, _ ask) {
		r.proxy.Refuse(true)
		r.proxy.Cut()
		until(r, "outage noticed", func() bool { return sessionOf(r.c).Usable() != nil })
		ctx, cancel := context.WithCancel(bounded(r))
		defer cancel()
		short, long := r.call(ctx, wants), r.call(bounded(r), wants)
		short.wantWaiting()
		cancel()
		await(r, "answer", short.answered)
		if !errors.Is(short.err, idem.ErrUnavailable) || !errors.Is(short.err, context.Canceled) {
			r.Errorf("acquire = %v, %v; want %v and %v", short.lease, short.err, idem.ErrUnavailable, context.Canceled)
		}
		long.wantWaiting()
		r.proxy.Refuse(false)
		r.wantGood(long.granted(), 0)
		r.release(long.lease)
	})
}
