package zookeeper

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/zktest"
)

const (
	patience = zktest.Patience
	testTick = zktest.Tick
)

var (
	await      = zktest.Await
	bounded    = zktest.Bounded
	create     = zktest.Create
	newID      = zktest.NewID
	password   = zktest.Password
	rawConn    = zktest.RawConn
	request    = zktest.Request
	testLogger = zktest.Logger
	until      = zktest.Until

	mine     = Credential(zktest.Mine)
	theirs   = Credential(zktest.Theirs)
	stranger = zktest.Stranger[Credential]
)

type (
	recorder[T any] = zktest.Recorder[T]
)

// config is one for servers of the harness, in a chroot of the test's own.
func config(t testing.TB, servers ...string) Config {
	return Config{
		Servers:        servers,
		Chroot:         testserver.Chroot(t),
		SessionTimeout: 6 * time.Second,
		TickTime:       testTick,
		OpenTimeout:    patience,
		Logger:         testLogger(),
	}
}

func sharedConfig(t testing.TB) Config {
	return config(t, testserver.SharedZooKeeper(t)...)
}

func open(t testing.TB, cfg Config) *Client {
	t.Helper()
	c, err := Open(bounded(t), cfg)
	if err != nil {
		t.Fatalf("Open() = %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

// sessionOf returns what lockers have in the session that serves the callers of c, or nil.
func sessionOf(c *Client) *locks {
	s := c.core.Keeper.Current()
	if s == nil {
		return nil
	}
	return s.Local().(*locks)
}

// watchedBy lists the paths of a session's watches, without that of the lock domain.
func watchedBy(s *locks) (paths []string) {
	for key := range s.session.Watches.Watched() {
		if key.Path != s.client.cfg.domainPath() {
			paths = append(paths, key.Path)
		}
	}
	return paths
}

// taken is the lock of a key, which has to become free.
func taken(t testing.TB, c *Client, id driver.KeyID) *Lease {
	t.Helper()
	var lease driver.Lease
	until(t, "lock taken", func() bool {
		var err error
		lease, err = c.Locker().TryAcquire(bounded(t), request(id))
		return err == nil
	})
	return lease.(*Lease)
}

// znodeOf is where a lock is.
func znodeOf(l *Lease) string {
	path, _ := l.held.Where()
	return path
}

// crowd is several clients in one chroot.
func crowd(t testing.TB, n int) []*Client {
	t.Helper()
	cfg := sharedConfig(t)
	cfg.SessionTimeout = 60 * time.Second
	clients := make([]*Client, n)
	for i := range clients {
		clients[i] = open(t, cfg)
	}
	return clients
}

func killSession(t testing.TB, c *Client, p *testserver.Proxy) {
	t.Helper()
	zktest.KillSession(t, sessionOf(c).table.Session, p)
}

func connOf(t testing.TB, s *locks) *zk.Conn { return zktest.Conn(t, s.session) }
