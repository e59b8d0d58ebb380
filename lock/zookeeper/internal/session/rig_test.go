package session

import (
	"context"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/wire"
)

func TestMain(m *testing.M) {
	testserver.ParallelTests(4) // most of them wait for a server
	goleak.VerifyTestMain(testserver.M{M: m})
}

// patience bounds everything that a test waits for. Reaching it is a failure.
const patience = 30 * time.Second

// testTick is the tickTime of the harness's servers.
const testTick = 500 * time.Millisecond

func testLogger() *slog.Logger {
	if os.Getenv("IDEMKEEPER_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// config is one for servers of the harness, below a znode of the test's own.
func config(t testing.TB, servers ...string) Config {
	return Config{
		Servers: servers, Dialer: &wire.Dialer{Dial: new(net.Dialer).DialContext},
		Timeout: 6 * time.Second, Tick: testTick, OpenTimeout: patience,
		ACL: zk.WorldACL(zk.PermAll), Logger: testLogger(), Now: leaseclock.Now,
		Members: testserver.Chroot(t) + "/members",
	}
}

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func keep(t testing.TB, cfg Config) *Keeper {
	t.Helper()
	k, err := Keep(bounded(t), cfg, Backoff{First: 100 * time.Millisecond, Max: time.Second})
	if err != nil {
		t.Fatalf("Keep() = %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = k.Close(ctx)
	})
	return k
}

// rig is a session behind a proxy.
type rig struct {
	proxy *testserver.Proxy
	k     *Keeper
	s     *Session
	clock *leaseclock.Manual // nil: the real one
	path  string             // of a znode that does not exist
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigWith(t, nil)
}

// newStillRig is newRig with a lease clock that stands still until the test moves it.
func newStillRig(t testing.TB) *rig {
	t.Helper()
	return newRigWith(t, leaseclock.NewManual())
}

func newRigWith(t testing.TB, clock *leaseclock.Manual) *rig {
	t.Helper()
	r := &rig{proxy: testserver.StartZooKeeperProxy(t, testserver.SharedZooKeeper(t)[0]), clock: clock}
	cfg := config(t, r.proxy.Addr())
	if clock != nil {
		cfg.Now = clock.Now
	}
	r.k = keep(t, cfg)
	r.s, r.path = r.k.Current(), cfg.Members+"/none"
	return r
}

func await(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatalf("%s: nothing after %v", what, patience)
	}
}

// until polls for something that has to become true.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

// create makes a persistent znode, or an ephemeral one.
func (r *rig) create(t testing.TB, path string, flags int32) {
	t.Helper()
	if got := r.s.Writes.Do(&zk.CreateRequest{Path: path, Acl: zk.WorldACL(zk.PermAll), Flags: flags}); got.Outcome != Applied {
		t.Fatalf("Write(create %s) = %+v", path, got)
	}
}

// together sends requests in one Multi, without any others.
func (b *Writes) together(reqs ...Request) (results []Result) {
	batch := make([]*write, len(reqs))
	for i, req := range reqs {
		batch[i] = newWrite(req)
	}
	b.status.Go(func() { b.sendAll(batch) })
	for _, wr := range batch {
		results = append(results, b.outcome(wr))
	}
	return results
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
