package zookeeper

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// The library is kept from starting a second session by the transport alone:
// here nobody closes it when the first one has expired, and nothing is pinned.
func TestTransportRefusesASecondSession(t *testing.T) {
	t.Parallel()
	servers := testserver.SharedZooKeeper(t)
	p := testserver.StartZooKeeperProxy(t, servers[0])
	cfg, err := config(t, p.Addr()).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	tr := newTransport(&cfg, func() {})
	c, events, err := zk.Connect(cfg.Servers, 10*time.Second, zk.WithDialer(tr.dial), zk.WithHostProvider(new(hosts)),
		zk.WithLogger(debugLog{testLogger()}), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		tr.shut()
		c.Close()
		for range events {
		}
	}()
	next, lock := rawConn(t, servers), cfg.Chroot
	create(t, c, lock, zk.FlagEphemeral)
	session := c.SessionID()
	if err := testserver.KillSession(servers[0], session, password(p)); err != nil {
		t.Fatal(err)
	}
	until(t, "lock free", func() bool { ok, _, err := next.Exists(lock); return err == nil && !ok })
	create(t, next, lock, zk.FlagEphemeral)
	p.Cut()
	for range 4 {
		if err := c.Delete(lock, -1); !errors.Is(err, zk.ErrNoServer) && !errors.Is(err, zk.ErrConnectionClosed) {
			t.Errorf("Delete() = %v, want it never to be sent", err)
		}
	}
	if ok, _, err := next.Exists(lock); !ok || err != nil {
		t.Errorf("the next owner's lock is gone (%v)", err)
	}
	if id, _, _ := tr.accepted(); id != session {
		t.Errorf("session %x, want it to be %x for ever", id, session)
	}
}
