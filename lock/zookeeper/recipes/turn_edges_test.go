package recipes

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// asks are the calls for a lock that look at the line in different ways.
func (r *rig) asks() map[string]ask {
	m, rw, sem := MustNewMutex(r.Client, linePath), MustNewRWMutex(r.Client, linePath), MustNewSemaphore(r.Client, linePath, 2)
	return map[string]ask{
		"Mutex.Acquire": m.Acquire, "Mutex.TryAcquire": m.TryAcquire,
		"RWMutex.AcquireRead": rw.AcquireRead, "RWMutex.TryAcquireRead": rw.TryAcquireRead,
		"Semaphore.Acquire":    func(ctx context.Context) (*Lease, error) { return sem.Acquire(ctx, 1) },
		"Semaphore.TryAcquire": func(ctx context.Context) (*Lease, error) { return sem.TryAcquire(ctx, 1) },
	}
}

// A caller that may take a place but not read the line is told so at once, and leaves no place.
func TestLineThatMayNotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	path := r.Config.Chroot + linePath
	if _, err := r.Raw.Create(path, nil, 0, zk.WorldACL(zk.PermAll&^zk.PermRead)); err != nil {
		t.Fatal(err)
	}
	for name, f := range r.asks() {
		ctx := bounded(t)
		if l, err := f(ctx); l != nil || !errors.Is(err, zk.ErrNoAuth) || ctx.Err() != nil {
			t.Errorf("%s() = %v, %v, want %v at once", name, l, err, zk.ErrNoAuth)
		}
	}
	if _, err := r.Raw.SetACL(path, zk.WorldACL(zk.PermAll), -1); err != nil {
		t.Fatal(err)
	}
	r.wantClean(r.Client)
}

// A call that is given up at its first look says so, and leaves no place. A try whose place was
// removed by hand before that look has no lock.
func TestFirstLook(t *testing.T) {
	t.Parallel()
	look := func(r *rig) testserver.Match {
		return testserver.All(testserver.Op(testserver.OpGetChildren2), testserver.Contains(r.Config.Chroot+linePath))
	}
	for _, name := range []string{"Mutex.Acquire", "RWMutex.AcquireRead", "Semaphore.Acquire"} {
		t.Run("given up, "+name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			reply := r.Proxy.HoldNextReply(look(r))
			defer reply.Release()
			if err := r.cancelAt(reply, r.asks()[name]); !errors.Is(err, driver.ErrLocked) || !errors.Is(err, context.Canceled) {
				t.Errorf("%s() = %v, want %v and its cause", name, err, driver.ErrLocked)
			}
			reply.Release()
			r.wantClean(r.Client)
		})
	}
	for _, name := range []string{"Mutex.TryAcquire", "RWMutex.TryAcquireRead", "Semaphore.TryAcquire"} {
		t.Run("removed, "+name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			request := r.Proxy.HoldNext(look(r))
			defer request.Release()
			call := r.call(bounded(t), r.asks()[name])
			await(t, "the look", request.Held())
			r.removeLine()
			request.Release()
			await(t, "answer", call.answered)
			if call.lease != nil || !errors.Is(call.err, driver.ErrLeaseLost) {
				t.Errorf("%s() = %v, %v, want %v", name, call.lease, call.err, driver.ErrLeaseLost)
			}
			r.wantClean(r.Client)
		})
	}
}

// A try that has waited for the places that its client gives back looks at the line again.
func TestTryLooksAgainAfterItsWait(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	ln := MustNewMutex(r.Client, linePath).ln
	var places [2]*Lease
	for i := range places {
		l, err := ln.enqueue(bounded(t), sessionOf(r.Client), exclusive, nil)
		if err != nil {
			t.Fatal(err)
		}
		places[i] = l
	}
	leaving, l := places[0], places[1]
	removed := leaving.held.Take()
	counter := r.Proxy.Count(ln.path)
	call := r.call(bounded(t), func(ctx context.Context) (*Lease, error) { return nil, l.turnAtOnce(ctx, first) })
	until(t, "the first look", func() bool {
		seen := counter.Seen()
		return seen.Unanswered == 0 && seen.Requests[testserver.OpGetChildren2] == 1
	})
	call.wantWaiting()
	if err := r.Raw.Delete(pathOf(l), -1); err != nil {
		t.Fatal(err)
	}
	path, czxid := leaving.held.Where()
	removed(l.held.Table().Remove(path, czxid, false))
	await(t, "answer", call.answered)
	if !errors.Is(call.err, driver.ErrLeaseLost) {
		t.Errorf("turnAtOnce() without a znode = %v, want %v", call.err, driver.ErrLeaseLost)
	}
	r.wantClean(r.Client)
}

// The line may still show a place of this session whose claim is gone since the look before. The
// place counts as leaving.
func TestLeavingPlaceWhoseClaimIsGone(t *testing.T) {
	t.Parallel()
	gone, l := pairOf(t, open(t, sharedConfig(t)))
	all := []line.Position{gone.place.Position, l.place.Position}
	cl := l.held.Table().Find(pathOf(gone))
	releaseAll(t, []*Lease{gone})
	others, leaving := l.leaving(all, []*held.Claim{cl})
	if !slices.Equal(others, all[1:]) || !slices.Equal(leaving, []*held.Claim{cl}) {
		t.Errorf("leaving() = %v, %v, want the second place, and the claim of the first", others, leaving)
	}
	if others, leaving = l.leaving(all, nil); !slices.Equal(others, all) || len(leaving) > 0 {
		t.Errorf("leaving() = %v, %v, want both places to be of others", others, leaving)
	}
	releaseAll(t, []*Lease{l})
}

// A waiter in a crowd that gives up has no lock. It does not take its place for lost because of
// a watch that does not show the place.
func TestGivenUpInACrowd(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	sem := MustNewSemaphore(r.Client, linePath, 1)
	l, err := sem.ln.enqueue(bounded(t), sessionOf(r.Client), permitsRole+"1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Raw.Delete(pathOf(l), -1); err != nil {
		t.Fatal(err)
	}
	await(t, "the watch", l.held.Table().Session.Watches.Of(sem.ln.path, session.OnChildren, nil).Armed())
	for range 50 { // it may see the watch or its own end first
		if err := l.awaitTurnInCrowd(canceled(t), sem.enough); !errors.Is(err, driver.ErrLocked) || !errors.Is(err, context.Canceled) {
			t.Fatalf("awaitTurnInCrowd() given up = %v, want %v and its cause", err, driver.ErrLocked)
		}
	}
	releaseAll(t, []*Lease{l})
}

// A caller that did not get the lock is no use of the line. So its parent goes with the only
// holder.
func TestRefusedTryIsNoUseOfTheLine(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m := MustNewMutex(r.Client, linePath)
	l := r.call(bounded(t), m.TryAcquire).granted()
	if l, err := m.TryAcquire(bounded(t)); !errors.Is(err, driver.ErrLocked) {
		t.Fatalf("TryAcquire() = %v, %v, want %v", l, err, driver.ErrLocked)
	}
	r.awaitPlaces(1)
	recipetest.Release(r, l)
	if there, _, err := r.Raw.Exists(r.Config.Chroot + linePath); there || err != nil {
		t.Errorf("the parent is there after its only use: %t, %v", there, err)
	}
}

// A waiter in a crowd that gives up after its place was lost has no lock.
func TestGivenUpInACrowdAfterASuspension(t *testing.T) {
	t.Parallel()
	r, clock := still(t)
	holder := r.queue(bounded(t), semAsk(r.Other, 1, 1)).granted()
	sem := MustNewSemaphore(r.Client, linePath, 1)
	l, err := sem.ln.enqueue(bounded(t), sessionOf(r.Client), permitsRole+"1", nil)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the watch", l.held.Table().Session.Watches.Of(sem.ln.path, session.OnChildren, nil).Armed())
	r.Proxy.Freeze(testserver.Both)
	clock.Advance(r.Config.SessionTimeout)
	if err := l.Err(); !errors.Is(err, driver.ErrLeaseLost) {
		t.Fatalf("Err() after a suspension = %v, want %v", err, driver.ErrLeaseLost)
	}
	for range 50 { // it may see the loss, the watch or its own end first
		if err := l.awaitTurnInCrowd(canceled(t), sem.enough); !errors.Is(err, driver.ErrLeaseLost) {
			t.Fatalf("awaitTurnInCrowd() of a lost place = %v, want %v", err, driver.ErrLeaseLost)
		}
	}
	recipetest.Release(r, holder)
}
