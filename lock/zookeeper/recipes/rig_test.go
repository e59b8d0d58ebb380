package recipes

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/zktest"
)

const (
	patience = zktest.Patience
	testTick = zktest.Tick
)

var (
	await      = zktest.Await
	bounded    = zktest.Bounded
	canceled   = zktest.Canceled
	create     = zktest.Create
	newID      = zktest.NewID
	password   = zktest.Password
	rawConn    = zktest.RawConn
	request    = zktest.Request
	testLogger = zktest.Logger
	until      = zktest.Until

	mine     = zktest.Mine
	theirs   = zktest.Theirs
	stranger = zktest.Stranger
	tree     = zktest.Tree
)

type (
	journal         = zktest.Journal
	recorder[T any] = zktest.Recorder[T]
)

// config is one for servers of the harness, in a chroot of the test's own.
func config(t testing.TB, servers ...string) zookeeper.Config {
	return zookeeper.Config{
		Servers: servers, Chroot: testserver.Chroot(t),
		SessionTimeout: 6 * time.Second, TickTime: testTick, OpenTimeout: patience,
		Root: "/lock", Base: "/idem", Logger: testLogger(),
	}
}

func sharedConfig(t testing.TB) zookeeper.Config {
	return config(t, testserver.SharedZooKeeper(t)...)
}

func open(t testing.TB, cfg zookeeper.Config) *zookeeper.Client {
	t.Helper()
	c, err := zookeeper.Open(bounded(t), cfg)
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

// base is what the objects of a client share.
func base(c *zookeeper.Client) *held.Client {
	b, _ := c.Base()
	return b
}

// sessionOf returns the claims of the session that serves the callers of c, or nil.
func sessionOf(c *zookeeper.Client) *held.Table {
	s := base(c).Keeper.Current()
	if s == nil {
		return nil
	}
	return s.Local().(interface{ Claims() *held.Table }).Claims()
}

func killSession(t testing.TB, c *zookeeper.Client, p *testserver.Proxy) {
	t.Helper()
	zktest.KillSession(t, sessionOf(c).Session, p)
}

func taken(t testing.TB, c *zookeeper.Client, id idem.KeyID) *zookeeper.Lease {
	t.Helper()
	var lease idem.Lease
	until(t, "lock taken", func() bool {
		var err error
		lease, err = c.Locker().TryAcquire(bounded(t), request(id))
		return err == nil
	})
	return lease.(*zookeeper.Lease)
}

// rig is a client behind a proxy, another one beside it, and a plain connection.
type rig struct {
	testing.TB
	proxy *testserver.Proxy
	cfg   zookeeper.Config
	c     *zookeeper.Client // through the proxy
	other *zookeeper.Client // straight to the server
	raw   *zk.Conn
}

// newRig has sessions that no test outlasts, unless timeout is given.
func newRig(t testing.TB, timeout time.Duration) *rig {
	t.Helper()
	server := testserver.SharedZooKeeper(t)
	r := &rig{TB: t, proxy: testserver.StartZooKeeperProxy(t, server[0]), raw: rawConn(t, server), cfg: config(t, server...)}
	r.cfg.SessionTimeout = 60 * time.Second
	r.other = open(t, r.cfg)
	r.cfg.Servers = []string{r.proxy.Addr()}
	if timeout != 0 {
		r.cfg.SessionTimeout = timeout
	}
	r.c = open(t, r.cfg)
	return r
}

func (r *rig) release(l idem.Lease) {
	r.Helper()
	if err := l.Release(bounded(r)); err != nil {
		r.Fatalf("Release() = %v", err)
	}
}

// wantHeld checks that a lease is good and stands for the znode that is there.
func (r *rig) wantHeld(l *Lease) {
	r.Helper()
	if _, err := l.Check(bounded(r)); err != nil {
		r.Errorf("Check() = %v, want a held lease", err)
	}
	path, czxid := l.Where()
	data, stat, err := r.raw.Get(path)
	if err != nil {
		r.Errorf("place on the server: %v", err)
		return
	}
	if czxid != stat.Czxid || l.Fence() != l.place.Fence(l.Table(), stat.Czxid) {
		r.Errorf("place on the server: %s, %+v; want it to be that of fence %v", data, stat, l.Fence())
	}
}

// wantLost checks that a lease has ended and says so.
func (r *rig) wantLost(l idem.Lease) {
	r.Helper()
	await(r, "Done()", l.Done())
	if err := l.Err(); err == nil {
		r.Error("Err() = <nil>, want the loss")
	}
}

// idle waits until a client has nothing left to settle.
func (r *rig) idle(c *zookeeper.Client) {
	r.Helper()
	await(r, "background work", base(c).Keeper.Background.Idle())
	if s := sessionOf(c); s != nil {
		if paths := s.Unsettled(); len(paths) > 0 {
			r.Errorf("%q are claimed, and no lease stands for them", paths)
		}
	}
}

// crowd is several clients in one chroot.
func crowd(t testing.TB, n int) []*zookeeper.Client {
	t.Helper()
	cfg := sharedConfig(t)
	cfg.SessionTimeout = 60 * time.Second
	clients := make([]*zookeeper.Client, n)
	for i := range clients {
		clients[i] = open(t, cfg)
	}
	return clients
}

// pathOf is where a lease's znode is.
func pathOf(l interface{ Where() (string, int64) }) string {
	path, _ := l.Where()
	return path
}

// lockPath is where the lock of a key is.
func lockPath(c *zookeeper.Client, id idem.KeyID) string {
	hex := id.String()
	return base(c).Chroot + "/lock/" + hex[:3] + "/" + hex[3:]
}

// straight is the configuration without the proxy.
func (r *rig) straight() zookeeper.Config {
	cfg := r.cfg
	cfg.Servers, cfg.SessionTimeout = testserver.SharedZooKeeper(r), 60*time.Second
	return cfg
}
