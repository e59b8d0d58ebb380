package session

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// A plain connection of the library begins another session after the end of its own. Package
// wire stops that. This test goes without it, so the pin alone keeps a delete of the old session
// from the lock of the next owner.
func TestWriteOfAnEarlierSessionIsRefused(t *testing.T) {
	t.Parallel()
	servers, root := testserver.SharedZooKeeper(t), testserver.Chroot(t)
	proxy := testserver.StartZooKeeperProxy(t, servers[0])
	conn, next := rawConn(t, []string{proxy.Addr()}), rawConn(t, servers)
	st := &status{log: testLogger(), over: make(chan struct{}), changed: make(chan struct{}), now: leaseclock.Now, connected: true}
	tr := &trust{status: st, clock: clock{timeout: 10 * time.Second, tick: testTick}}
	r := &requests{trust: tr, conn: conn, renewed: func() {}}
	r.member = &zk.SetDataRequest{Path: root + "/0123456789ABCDEFGHIJKLMNOP", Version: -1}
	create(t, next, root, 0)
	create(t, conn, r.member.Path, zk.FlagEphemeral)
	if got := r.send(&zk.CreateRequest{Path: root + "/lock", Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagEphemeral}); got.Outcome != Applied {
		t.Fatalf("send(create) = %+v in the session of the member, want it applied", got)
	}

	first := conn.SessionID()
	if err := testserver.KillSession(servers[0], first, password(proxy)); err != nil {
		t.Fatalf("KillSession() = %v", err)
	}
	until(t, "lock free", func() bool { ok, _, err := next.Exists(root + "/lock"); return err == nil && !ok })
	create(t, next, root+"/lock", zk.FlagEphemeral)
	proxy.Cut()
	until(t, "another session", func() bool { return conn.State() == zk.StateHasSession && conn.SessionID() != first })

	got := r.send(&zk.DeleteRequest{Path: root + "/lock", Version: -1})
	if got.Outcome != Ended || !errors.Is(got.Err, ErrNoMember) || !errors.Is(st.Err(), ErrNoMember) {
		t.Errorf("send(delete) = %+v in a later session, then Err() = %v; want %v", got, st.Err(), ErrNoMember)
	}
	if ok, _, err := next.Exists(root + "/lock"); err != nil || !ok {
		t.Errorf("Exists(lock) = %v, %v; want that the next owner still has it", ok, err)
	}
}

// A write that was queued when its connection broke goes out over the next one. If it gets
// no answer there, that connection is dropped as well, and not before its time.
func TestUnansweredWriteIsGuardedOverALaterConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.s
	_, patience := s.patience(time.Now())
	answered := s.guard() // of a write that the test never sends
	defer answered()
	time.Sleep(patience / 2)
	first, _ := s.connection()
	r.proxy.Cut()
	second := first
	until(t, "another connection", func() bool {
		gen, err := s.confirmation()
		second = gen
		return err == nil && gen > first
	})
	began := time.Now()
	until(t, "the end of the second connection", func() bool {
		gen, err := s.connection()
		return err != nil || gen > second
	})
	if lasted := time.Since(began); lasted < patience*3/4 {
		t.Errorf("the second connection was dropped after %v, want about %v", lasted, patience)
	}
}
