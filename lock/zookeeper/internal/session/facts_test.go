package session

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// These tests hold what the package relies on: facts about ZooKeeper and
// go-zookeeper, without any code of the package.

func TestFactPinTellsFence(t *testing.T) {
	t.Parallel()
	raw := rawConn(t, testserver.SharedZooKeeper(t))
	root := testserver.Chroot(t)
	create(t, raw, root, 0)
	create(t, raw, root+"/member", zk.FlagEphemeral)

	answer, err := raw.Multi(
		&zk.SetDataRequest{Path: root + "/member", Version: -1},
		&zk.CreateRequest{Path: root + "/lock", Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagEphemeral},
	)
	if err != nil || len(answer) != 2 {
		t.Fatalf("Multi() = %v, %v", answer, err)
	}
	_, stat, err := raw.Get(root + "/lock")
	if err != nil || answer[0].Stat == nil || answer[0].Stat.Mzxid != stat.Czxid {
		t.Errorf("Multi() gave mzxid %+v, want the lock's czxid %d (%v)", answer[0].Stat, stat.Czxid, err)
	}
	if r := interpret(1, answer, nil); r.Outcome != Applied || r.Zxid != stat.Czxid {
		t.Errorf("interpret() = %+v, want applied with zxid %d", r, stat.Czxid)
	}
}

func TestFactFirstErrorIsTheCulprit(t *testing.T) {
	t.Parallel()
	raw := rawConn(t, testserver.SharedZooKeeper(t))
	root := testserver.Chroot(t)
	create(t, raw, root, 0)
	create(t, raw, root+"/member", zk.FlagEphemeral)
	create(t, raw, root+"/taken", 0)
	pin := &zk.SetDataRequest{Path: root + "/member", Version: -1}
	free := &zk.CreateRequest{Path: root + "/free", Acl: zk.WorldACL(zk.PermAll)}
	taken := &zk.CreateRequest{Path: root + "/taken", Acl: zk.WorldACL(zk.PermAll)}
	orphan := &zk.CreateRequest{Path: root + "/none/child", Acl: zk.WorldACL(zk.PermAll)}
	absent := &zk.DeleteRequest{Path: root + "/absent", Version: -1}
	for _, tt := range []struct {
		name string
		ops  []any
		want Result
	}{
		{"last fails", []any{free, taken}, Result{Outcome: Refused, Op: 1, Err: zk.ErrNodeExists}},
		{"first fails", []any{taken, free}, Result{Outcome: Refused, Op: 0, Err: zk.ErrNodeExists}},
		{"two fail", []any{free, orphan, taken}, Result{Outcome: Refused, Op: 1, Err: zk.ErrNoNode}},
		{"delete fails", []any{free, absent, free}, Result{Outcome: Refused, Op: 1, Err: zk.ErrNoNode}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer, err := raw.Multi(append([]any{pin}, tt.ops...)...)
			got := interpret(len(tt.ops), answer, err)
			if got.Outcome != tt.want.Outcome || got.Op != tt.want.Op || !errors.Is(got.Err, tt.want.Err) {
				t.Errorf("interpret() = %+v, want %+v", got, tt.want)
			}
			if ok, _, err := raw.Exists(root + "/free"); ok || err != nil {
				t.Errorf("a failed batch created a znode (%v)", err)
			}
		})
	}
	t.Run("pin fails", func(t *testing.T) {
		answer, err := raw.Multi(&zk.SetDataRequest{Path: root + "/gone", Version: -1}, free, absent)
		if got := interpret(2, answer, err); got.Outcome != Ended {
			t.Errorf("interpret() = %+v, want ended", got)
		}
	})
}

// A request made after the session has expired is sent in the next.
func TestFactDeleteAcrossExpiry(t *testing.T) {
	t.Parallel()
	root := testserver.Chroot(t)
	servers := testserver.SharedZooKeeper(t)
	next := rawConn(t, servers)
	create(t, next, root, 0)

	for _, pinned := range []bool{false, true} {
		expired := make(chan struct{})
		p := testserver.StartZooKeeperProxy(t, servers[0])
		once := false
		old, events, err := zk.Connect([]string{p.Addr()}, 10*time.Second, zk.WithLogger(debugLog{testLogger()}), zk.WithLogInfo(false),
			zk.WithEventCallback(func(ev zk.Event) {
				if ev.Type == zk.EventSession && ev.State == zk.StateExpired && !once {
					once = true
					close(expired)
				}
			}))
		if err != nil {
			t.Fatal(err)
		}
		create(t, old, root+"/member", zk.FlagEphemeral)
		create(t, old, root+"/lock", zk.FlagEphemeral)
		if err := testserver.KillSession(servers[0], old.SessionID(), password(p)); err != nil {
			t.Fatalf("KillSession() = %v", err)
		}
		until(t, "lock free", func() bool { ok, _, err := next.Exists(root + "/lock"); return err == nil && !ok })
		create(t, next, root+"/lock", zk.FlagEphemeral)
		p.Cut()
		await(t, "expiry", expired)

		// What waits when the library starts over is failed once; what is
		// called right after is kept for the new
		err = zk.ErrNoServer
		for errors.Is(err, zk.ErrNoServer) {
			if pinned {
				var answer []zk.MultiResponse
				answer, err = old.Multi(&zk.SetDataRequest{Path: root + "/member", Version: -1}, &zk.DeleteRequest{Path: root + "/lock", Version: -1})
				if err != nil && len(answer) == 2 && interpret(1, answer, err).Outcome != Ended {
					t.Errorf("pinned delete was refused by %+v, want by its pin", answer)
				}
			} else {
				err = old.Delete(root+"/lock", -1)
			}
		}
		ok, _, lookErr := next.Exists(root + "/lock")
		if lookErr != nil {
			t.Fatal(lookErr)
		}
		if pinned && (!errors.Is(err, zk.ErrNoNode) || !ok) {
			t.Errorf("pinned delete across expiry = %v, next owner's lock exists: %v; want %v and true", err, ok, zk.ErrNoNode)
		}
		if !pinned && (err != nil || ok) {
			t.Errorf("plain delete across expiry = %v, next owner's lock exists: %v; the danger that this package guards against is gone", err, ok)
		}
		if ok {
			if err := next.Delete(root+"/lock", -1); err != nil {
				t.Fatal(err)
			}
		}
		old.Close()
		for range events {
		}
	}
}

// A delete that is sent again because its reply was lost removes the lock of
// whoever came in between, in the same session, pin notwithstanding.
func TestFactBlindResend(t *testing.T) {
	t.Parallel()
	root := testserver.Chroot(t)
	servers := testserver.SharedZooKeeper(t)
	p := testserver.StartZooKeeperProxy(t, servers[0])
	old, next := rawConn(t, []string{p.Addr()}), rawConn(t, servers)
	create(t, old, root, 0)
	create(t, old, root+"/member", zk.FlagEphemeral)
	create(t, old, root+"/lock", zk.FlagEphemeral)
	session := old.SessionID()

	dropped := p.DropNextReply(testserver.Op(testserver.OpMulti))
	del := []any{&zk.SetDataRequest{Path: root + "/member", Version: -1}, &zk.DeleteRequest{Path: root + "/lock", Version: -1}}
	if _, err := old.Multi(del...); err == nil {
		t.Fatal("Multi() succeeded, its reply should have been lost")
	}
	await(t, "dropped reply", dropped)
	create(t, next, root+"/lock", zk.FlagEphemeral)
	err := zk.ErrConnectionClosed
	for errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrNoServer) {
		_, err = old.Multi(del...)
	}
	ok, _, lookErr := next.Exists(root + "/lock")
	if err != nil || lookErr != nil || ok || old.SessionID() != session {
		t.Errorf("re-sent delete = %v, next owner's lock exists: %v (%v); the danger that this package guards against is gone", err, ok, lookErr)
	}
}

// rawConn is a plain go-zookeeper connection.
func rawConn(t testing.TB, servers []string) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect(servers, 10*time.Second, zk.WithLogger(debugLog{testLogger()}), zk.WithLogInfo(false))
	if err != nil {
		t.Fatalf("zk.Connect(%v) = %v", servers, err)
	}
	t.Cleanup(func() {
		c.Close()
		for range events {
		}
	})
	return c
}

func create(t testing.TB, c *zk.Conn, path string, flags int32) {
	t.Helper()
	if _, err := c.Create(path, nil, flags, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatalf("Create(%s) = %v", path, err)
	}
}

func password(p *testserver.Proxy) []byte {
	_, passwd := p.Session()
	return passwd
}
