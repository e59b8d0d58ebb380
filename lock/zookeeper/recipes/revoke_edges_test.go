package recipes

import (
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// awaitReads waits until a client has read a place so many times.
func (r *rig) awaitReads(counter *testserver.Counter, n int) {
	r.Helper()
	until(r, "reads of the place", func() bool {
		seen := counter.Seen()
		return seen.Unanswered == 0 && seen.Requests[testserver.OpGetData] >= n
	})
}

// A place with an ACL that forbids the request is not asked, and the caller is told at once. A
// holder that may not read its own place keeps the lock.
func TestRevokeThatIsNotPermitted(t *testing.T) {
	t.Parallel()
	for what, perm := range map[string]int32{"read": zk.PermRead, "write": zk.PermWrite} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			l := r.queue(bounded(t), MustNewMutex(r.Client, linePath).Acquire).granted()
			allow := func(perms int32) {
				t.Helper()
				if _, err := r.Raw.SetACL(pathOf(l), zk.WorldACL(perms), -1); err != nil {
					t.Fatal(err)
				}
			}
			allow(zk.PermAll &^ perm)
			counter := r.Proxy.Count(pathOf(l))
			revoked := l.Revoked()
			ctx := bounded(t)
			if err := MustNewMutex(r.Other, linePath).Revoke(ctx); !errors.Is(err, zk.ErrNoAuth) || ctx.Err() != nil {
				t.Errorf("Revoke() = %v, want %v at once", err, zk.ErrNoAuth)
			}
			r.awaitReads(counter, 2) // with the watch, and after it
			allow(zk.PermAll)
			r.wantHeld(l)
			wantOpen(t, revoked)
			recipetest.Release(r, l)
		})
	}
}

// Of two requests at once, the later one finds the holder asked.
func TestRevokeTwiceAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	l := r.queue(bounded(t), MustNewMutex(r.Other, linePath).Acquire).granted()
	late := r.Proxy.HoldNext(r.onLine())
	defer late.Release()
	done := make(chan error, 1)
	go func() { done <- MustNewMutex(r.Client, linePath).Revoke(bounded(t)) }()
	await(t, "the request", late.Held())
	if err := MustNewMutex(r.Other, linePath).Revoke(bounded(t)); err != nil {
		t.Fatal(err)
	}
	late.Release()
	if err := <-done; err != nil {
		t.Errorf("Revoke() of a holder that was asked meanwhile = %v", err)
	}
	await(t, "Revoked()", l.Revoked())
	recipetest.Release(r, l)
}

// A request after the end of a lease does not reach its former holder. So it can be passed on.
func TestRequestAfterTheEndOfALease(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	l := r.queue(bounded(t), MustNewMutex(r.Client, linePath).Acquire).granted()
	tab, path := l.held.Table(), pathOf(l)
	removed := l.held.Take() // and the znode stays
	if err := MustNewMutex(r.Other, linePath).Revoke(bounded(t)); err != nil {
		t.Fatal(err)
	}
	await(t, "the watch", tab.Session.Watches.Of(path, session.OnNode, nil).Armed())
	for range 50 { // it may see the end of the lease before the request
		l.watchOwn()
	}
	wantOpen(t, l.place.wish())
	_, czxid := l.held.Where()
	removed(tab.Remove(path, czxid, false))
	r.wantClean(r.Client)
}
