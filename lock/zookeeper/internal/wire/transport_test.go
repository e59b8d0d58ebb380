package wire

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The library is kept from starting a second session by the transport alone:
// here nobody closes it when the first one has expired, and nothing is pinned.
func TestTransportRefusesASecondSession(t *testing.T) {
	t.Parallel()
	servers := testserver.SharedZooKeeper(t)
	p := testserver.StartZooKeeperProxy(t, servers[0])
	tr := NewTransport(&Dialer{Dial: new(net.Dialer).DialContext}, 6*time.Second, leaseclock.Now)
	c, events, err := zk.Connect([]string{p.Addr()}, 10*time.Second, zk.WithDialer(tr.Dial), zk.WithHostProvider(new(Hosts)), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		tr.Shut()
		c.Close()
		for range events {
		}
	}()
	next, lock := connect(t, servers), testserver.Chroot(t)
	create(t, c, lock, zk.FlagEphemeral)
	session := c.SessionID()
	_, passwd := p.Session()
	for end := time.Now().Add(30 * time.Second); ; {
		killed := testserver.KillSession(servers[0], session, passwd) // an error may only mean that it is gone
		if there, _, err := next.Exists(lock); err == nil && !there {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("KillSession() = %v, and the lock is still there", killed)
		}
	}
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
	if id, _, _ := tr.Accepted(); id != session {
		t.Errorf("session %x, want it to be %x for ever", id, session)
	}
}

func connect(t *testing.T, servers []string) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect(servers, 10*time.Second, zk.WithLogInfo(false))
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

func create(t *testing.T, c *zk.Conn, path string, flags int32) {
	t.Helper()
	if _, err := c.Create(path, nil, flags, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatalf("Create(%s) = %v", path, err)
	}
}

// A server may answer a connect with another session, or with one that ends at once. The library
// never hears of either.
func TestTransportRefusesWhatIsNotItsSession(t *testing.T) {
	t.Parallel()
	tr := NewTransport(&Dialer{Dial: new(net.Dialer).DialContext}, 6*time.Second, leaseclock.Now)
	if err := tr.admit(1, 0, leaseclock.Now()); err == nil {
		t.Error("admit() of a session without a time-out = nil, want an error")
	}
	if err := tr.admit(1, time.Second, leaseclock.Now()); err != nil {
		t.Fatalf("admit() = %v", err)
	}
	if err := tr.admit(2, time.Second, leaseclock.Now()); !errors.Is(err, errSessionSwapped) {
		t.Errorf("admit() of another session = %v, want %v", err, errSessionSwapped)
	}
	if _, err := tr.Dial("tcp", testserver.SharedZooKeeper(t)[0], time.Second); err == nil {
		t.Error("Dial() = nil, want an error for ever")
	}
	if id, _, _ := tr.Accepted(); id != 1 {
		t.Errorf("session %x, want the first one", id)
	}
}
