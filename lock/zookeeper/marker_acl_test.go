package zookeeper

import (
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// With credentials a marker, and the lock below it, are out of others' reach.
func TestMarkerACLKeepsStrangersOut(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	cfg.Credentials = []Credential{mine}
	c := open(t, cfg)
	l := c.Locker(WithDurableMarkers())
	servers := testserver.SharedZooKeeper(t)
	strangers := map[string]*zk.Conn{"nobody": stranger(t, servers), "somebody": stranger(t, servers, theirs)}
	id, m := newID(), completed()
	path := c.cfg.lockPath(id)
	wantOut := func() {
		t.Helper()
		for name, conn := range strangers {
			for _, at := range []string{path, path + lockChild} {
				if err := conn.Delete(at, -1); !errors.Is(err, zk.ErrNoAuth) {
					t.Errorf("%s: Delete(%s) = %v, want %v", name, at, err, zk.ErrNoAuth)
				}
				if _, err := conn.Set(at, nil, -1); !errors.Is(err, zk.ErrNoAuth) && !errors.Is(err, zk.ErrNoNode) {
					t.Errorf("%s: Set(%s) = %v, want %v", name, at, err, zk.ErrNoAuth)
				}
				if _, err := conn.Create(at+"/x", nil, 0, zk.WorldACL(zk.PermAll)); !errors.Is(err, zk.ErrNoAuth) && !errors.Is(err, zk.ErrNoNode) {
					t.Errorf("%s: Create(%s/x) = %v, want %v", name, at, err, zk.ErrNoAuth)
				}
			}
		}
	}
	for _, found := range []*driver.Marker{nil, m} { // left, and left alone
		lease, err := l.TryAcquire(bounded(t), request(id))
		if err != nil {
			t.Fatal(err)
		}
		wantFound(t, lease.(*Lease), found)
		if found != nil {
			wantOut()
		} else {
			lease.(*Lease).MarkOnRelease(m)
		}
		if err := lease.Release(bounded(t)); err != nil {
			t.Fatal(err)
		}
		wantOut()
	}
	if got, err := l.RemoveMarkers(bounded(t), all); err != nil || got.Removed != 1 {
		t.Errorf("RemoveMarkers() = %+v, %v; want one removed", got, err)
	}
}

// A holder may not write the marker that it has to leave. Its lock stays until the marker can be
// written, so that no other attempt finds the key unmarked.
func TestMarkerThatMayNotBeLeft(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	parent, m := parentOf(r.c, r.id), completed()
	permit := func(perms int32) {
		t.Helper()
		if _, err := r.raw.SetACL(parent, zk.WorldACL(perms), -1); err != nil {
			t.Fatal(err)
		}
	}
	lease := r.take(r.l)
	lease.MarkOnRelease(m)
	permit(zk.PermAll &^ zk.PermCreate)
	writes, again := r.proxy.Count(r.path), r.proxy.HoldNext(onRead(r.path))
	lease.ReleaseInBackground()
	await(t, "the next try, after a pause", again.Held())
	if n := writes.Seen().Requests[testserver.OpMulti]; n != 1 {
		t.Errorf("%d writes before the pause, want 1", n)
	}
	if !r.exists() {
		t.Error("the lock is gone, and its marker is not there")
	}
	permit(zk.PermAll)
	again.Release()
	r.release(lease)
	r.wantMarker(m)
}

// Markers of another identity, which can be read or not: they end no pass.
func TestMarkerACLOfOthers(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	readable, hidden := r.sibling(), r.sibling()
	data, err := completed().AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	owner := zk.DigestACL(zk.PermAll, "other", "secret")
	for id, acl := range map[driver.KeyID][]zk.ACL{readable: append(zk.WorldACL(zk.PermRead), owner...), hidden: owner} {
		if _, err := r.raw.Create(r.cfg.lockPath(id), data, 0, acl); err != nil {
			t.Fatal(err)
		}
		if _, err := r.l.TryAcquire(bounded(t), request(id)); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, ErrNotPermitted) {
			t.Errorf("TryAcquire() = %v, want %v and %v", err, driver.ErrUnavailable, ErrNotPermitted)
		}
	}
	r.mark(completed())
	r.wantRemoved(all, MarkerStats{Looked: 2, Removed: 1, Kept: 1})
	r.idle(r.c)
}
