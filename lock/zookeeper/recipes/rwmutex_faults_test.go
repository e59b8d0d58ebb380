package recipes

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// lineKind is a way to be in line that is to stand all faults: what is asked
// for, and what holds it up when somebody else has it.
type lineKind struct {
	name        string
	wants, bars func(c *zookeeper.Client) ask
}

var lineKinds = []lineKind{
	{"mutex", func(c *zookeeper.Client) ask { return MustNewMutex(c, linePath).Acquire }, func(c *zookeeper.Client) ask { return MustNewMutex(c, linePath).Acquire }},
	{"read", func(c *zookeeper.Client) ask { return MustNewRWMutex(c, linePath).AcquireRead }, func(c *zookeeper.Client) ask { return MustNewRWMutex(c, linePath).AcquireWrite }},
	{"semaphore", func(c *zookeeper.Client) ask { return semAsk(c, 3, 2) }, func(c *zookeeper.Client) ask { return semAsk(c, 3, 2) }},
}

// onEachLine runs a test for each of them, with a rig of its own.
func onEachLine(t *testing.T, run func(r *rig, wants, bars ask)) {
	t.Parallel()
	for _, k := range lineKinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			run(r, k.wants(r.Client), k.bars(r.Other))
			r.wantClean(r.Client, r.Other)
		})
	}
}

// wantGood says that a lease is good, and alone in line with that many others.
func (r *rig) wantGood(l *Lease, others int) {
	r.Helper()
	if _, err := l.Check(bounded(r)); err != nil {
		r.Errorf("Check() = %v, want a held lease", err)
	}
	r.awaitPlaces(1 + others)
}

func TestLineGivenUpWaiting(t *testing.T) {
	onEachLine(t, func(r *rig, wants, bars ask) {
		held := r.queue(bounded(r), bars).granted()
		ctx, cancel := context.WithCancel(bounded(r))
		defer cancel()
		c := r.queue(ctx, wants)
		r.watching(r.Client)
		cancel()
		await(r, "answer", c.answered)
		if !errors.Is(c.err, driver.ErrLocked) || !errors.Is(c.err, context.Canceled) {
			r.Errorf("acquire = %v, %v; want %v and %v", c.lease, c.err, driver.ErrLocked, context.Canceled)
		}
		r.wantGood(held, 0)
		recipetest.Release(r, held)
	})
}

// The line is removed by hand, parent and all, while one has the lock and one
// waits: the waiter starts anew, and the holder is told when it asks.
func TestLineParentDeletedWaiting(t *testing.T) {
	onEachLine(t, func(r *rig, wants, bars ask) {
		held := r.queue(bounded(r), bars).granted()
		c := r.queue(bounded(r), wants)
		r.watching(r.Client)
		r.removeLine()
		r.wantGood(c.granted(), 0)
		r.wantLost(lookedAt(held))
		recipetest.Release(r, c.lease)
	})
}

// lookedAt has a lease find out about its znode.
func lookedAt(l *Lease) *Lease {
	_, _ = l.Check(context.Background())
	return l
}

// The waiter's own place is removed by hand, and nothing else.
func TestLinePlaceDeletedWaiting(t *testing.T) {
	onEachLine(t, func(r *rig, wants, bars ask) {
		held := r.queue(bounded(r), bars).granted()
		c := r.queue(bounded(r), wants)
		r.watching(r.Client)
		if err := r.Raw.Delete(r.Config.Chroot+linePath+"/"+r.places()[1].Name, -1); err != nil {
			r.Fatal(err)
		}
		recipetest.Release(r, held)
		r.wantGood(c.granted(), 0)
		recipetest.Release(r, c.lease)
	})
}

// The client is closed while a caller waits. The caller hears of it, and leaves no place.
func TestLineClientClosedWaiting(t *testing.T) {
	onEachLine(t, func(r *rig, wants, bars ask) {
		held := r.queue(bounded(r), bars).granted()
		c := r.queue(bounded(r), wants)
		if err := r.Client.Close(bounded(r)); err != nil {
			r.Errorf("Close() = %v", err)
		}
		await(r, "answer", c.answered)
		if c.lease != nil || !errors.Is(c.err, driver.ErrUnavailable) {
			r.Errorf("acquire = %v, %v; want %v", c.lease, c.err, driver.ErrUnavailable)
		}
		r.wantGood(held, 0)
		recipetest.Release(r, held)
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
