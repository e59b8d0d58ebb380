// Package recipetest is the set-up that the tests of the recipes and of the queue share.
package recipetest

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/zktest"
)

// Config is the configuration of a client, in a chroot of the test's own.
func Config(t testing.TB, servers ...string) zookeeper.Config {
	return zookeeper.Config{
		Servers: servers, Chroot: testserver.Chroot(t),
		SessionTimeout: 6 * time.Second, TickTime: zktest.Tick, OpenTimeout: zktest.Patience,
		Root: "/lock", Home: "/idem", Logger: zktest.Logger(),
	}
}

// SharedConfig is Config for the server that all tests share.
func SharedConfig(t testing.TB) zookeeper.Config {
	return Config(t, testserver.SharedZooKeeper(t)...)
}

// Open opens a client, and closes it after the test.
func Open(t testing.TB, cfg zookeeper.Config) *zookeeper.Client {
	t.Helper()
	c, err := zookeeper.Open(zktest.Bounded(t), cfg)
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

// Crowd opens several clients in one chroot, with sessions that no test outlasts.
func Crowd(t testing.TB, n int) []*zookeeper.Client {
	t.Helper()
	cfg := SharedConfig(t)
	cfg.SessionTimeout = time.Minute
	clients := make([]*zookeeper.Client, n)
	for i := range clients {
		clients[i] = Open(t, cfg)
	}
	return clients
}

// ClientOf is the part that the objects of a client share.
func ClientOf(c *zookeeper.Client) *held.Client {
	b, _ := held.ClientOf(c)
	return b
}

// SessionOf returns the claims of the session that serves the callers of c, or nil.
func SessionOf(c *zookeeper.Client) *held.Table {
	s := ClientOf(c).Keeper.Current()
	if s == nil {
		return nil
	}
	return held.TableOf(s)
}

// Idle waits until a client has nothing left to settle.
func Idle(t testing.TB, c *zookeeper.Client) {
	t.Helper()
	zktest.Await(t, "background work", ClientOf(c).Keeper.Background.Idle())
	if s := SessionOf(c); s != nil {
		if paths := s.Unsettled(); len(paths) > 0 {
			t.Errorf("%q are claimed, and no lease stands for them", paths)
		}
	}
}

// Release releases a lease, and waits for it.
func Release(t testing.TB, l driver.Lease) {
	t.Helper()
	if err := l.Release(zktest.Bounded(t)); err != nil {
		t.Fatalf("Release() = %v", err)
	}
}

// Lease is a lease with a znode.
type Lease interface {
	driver.Lease
	Where() (path string, czxid int64)
}

// Rig is a client behind a proxy, another client beside it, and a plain connection.
type Rig struct {
	testing.TB
	Proxy  *testserver.Proxy
	Config zookeeper.Config
	Client *zookeeper.Client // through the proxy
	Other  *zookeeper.Client // straight to the server
	Raw    *zk.Conn
}

// NewRig makes sessions that no test outlasts, unless timeout is given for the Client's.
func NewRig(t testing.TB, timeout time.Duration) *Rig {
	t.Helper()
	server := testserver.SharedZooKeeper(t)
	r := &Rig{TB: t, Proxy: testserver.StartZooKeeperProxy(t, server[0]), Raw: zktest.RawConn(t, server), Config: Config(t, server...)}
	r.Config.SessionTimeout = time.Minute
	r.Other = Open(t, r.Config)
	r.Config.Servers = []string{r.Proxy.Addr()}
	if timeout != 0 {
		r.Config.SessionTimeout = timeout
	}
	r.Client = Open(t, r.Config)
	return r
}

// WantHeld checks that a lease is good and stands for the znode that is there. fence is the
// fence of a znode by its czxid.
func (r *Rig) WantHeld(l Lease, fence func(czxid int64) driver.Fence) {
	r.Helper()
	if _, err := l.Check(zktest.Bounded(r)); err != nil {
		r.Errorf("Check() = %v, want a held lease", err)
	}
	path, czxid := l.Where()
	data, stat, err := r.Raw.Get(path)
	if err != nil {
		r.Errorf("place on the server: %v", err)
		return
	}
	if czxid != stat.Czxid || l.Fence() != fence(stat.Czxid) {
		r.Errorf("place on the server: %s, %+v; want it to be that of fence %v", data, stat, l.Fence())
	}
}
