package zookeeper

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

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

// config is one for servers of the harness, in a chroot of the test's own.
func config(t testing.TB, servers ...string) Config {
	return Config{
		Servers:        servers,
		Chroot:         testserver.Chroot(t),
		SessionTimeout: 6 * time.Second,
		TickTime:       testTick,
		OpenTimeout:    patience,
		Logger:         testLogger(),

		// A test server would have to keep thousands of znodes for each test.
		ParentsOnDemand: true,
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

// sessionOf returns the session that serves the callers of c, or nil.
func sessionOf(c *Client) *locks {
	s := c.keeper.Current()
	if s == nil {
		return nil
	}
	return s.Local().(*locks)
}

// connOf returns the library's connection of a session, for requests past all care.
func connOf(t testing.TB, s *locks) (conn *zk.Conn) {
	t.Helper()
	if _, err := s.Look("/", func(c *zk.Conn, path string) (session.Node, error) {
		conn = c
		return session.Node{}, nil
	}); err != nil {
		t.Fatalf("Look() = %v", err)
	}
	return conn
}

// canceled returns a context that has ended.
func canceled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(bounded(t))
	cancel()
	return ctx
}

// bounded returns a context that ends when the test's patience does.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// rawConn is a plain go-zookeeper connection, for looking and meddling behind
// the back of the client under test.
func rawConn(t testing.TB, servers []string) *zk.Conn {
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

func newID() idem.KeyID {
	return idem.NewKeyID("test", idem.Key(idem.NewNonce().String()))
}

func request(id idem.KeyID) idem.LockRequest {
	return idem.LockRequest{KeyID: id, Nonce: idem.NewNonce()}
}

// create makes a znode, in as many tries as it takes to be connected.
func create(t testing.TB, c *zk.Conn, path string, flags int32) {
	t.Helper()
	if _, err := c.Create(path, nil, flags, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatalf("Create(%s) = %v", path, err)
	}
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

func password(p *testserver.Proxy) []byte {
	_, passwd := p.Session()
	return passwd
}
