// Package zktest has the shared parts of the tests of lock/zookeeper and of the packages below
// it.
package zktest

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Patience bounds every wait of a test. Reaching it is a failure.
const Patience = 30 * time.Second

// Tick is the tickTime of the harness's servers.
const Tick = 500 * time.Millisecond

// Logger discards everything, unless IDEMKEEPER_TEST_LOG is set.
func Logger() *slog.Logger {
	if os.Getenv("IDEMKEEPER_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// Conn returns the library's connection of a session, for requests without a pin.
func Conn(t testing.TB, s *session.Session) (conn *zk.Conn) {
	t.Helper()
	if _, err := s.Reads.Look("/", func(c *zk.Conn, path string) (session.Node, error) {
		conn = c
		return session.Node{}, nil
	}); err != nil {
		t.Fatalf("Look() = %v", err)
	}
	return conn
}

// Bounded returns a context that ends after Patience.
func Bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Canceled returns a context that has ended.
func Canceled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(Bounded(t))
	cancel()
	return ctx
}

// RawConn is a plain go-zookeeper connection, for looking and meddling without the client
// under test.
func RawConn(t testing.TB, servers []string) *zk.Conn {
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

// NewID returns a key ID for one test. No other test uses it.
func NewID() driver.KeyID { return idem.NewKeyID("test", idem.Key(driver.NewNonce().String())) }

// Request is a request for the lock of a key.
func Request(id driver.KeyID) driver.LockRequest {
	return driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()}
}

// Create makes a znode.
func Create(t testing.TB, c *zk.Conn, path string, flags int32) {
	t.Helper()
	if _, err := c.Create(path, nil, flags, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatalf("Create(%s) = %v", path, err)
	}
}

// Await waits for a channel to be closed.
func Await(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(Patience):
		t.Fatalf("%s: nothing after %v", what, Patience)
	}
}

// Until polls until a condition holds.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, Patience)
		}
	}
}

// Password is the password of the session behind a proxy.
func Password(p *testserver.Proxy) []byte {
	_, passwd := p.Session()
	return passwd
}

// Mine and Theirs are credentials of two users.
var (
	Mine   = session.Credential{Scheme: "digest", Secret: []byte("payments:secret")}
	Theirs = session.Credential{Scheme: "digest", Secret: []byte("payments:guess")}
)

// Stranger is a connection with the credentials of some users, or without credentials.
func Stranger[C ~struct {
	Scheme string
	Secret []byte
}](t testing.TB, servers []string, who ...C) *zk.Conn {
	t.Helper()
	c := RawConn(t, servers)
	for _, user := range who {
		cred := session.Credential(user)
		if err := c.AddAuth(cred.Scheme, cred.Secret); err != nil {
			t.Fatalf("AddAuth() = %v", err)
		}
	}
	return c
}

// Tree lists a znode and all znodes below it. The connection has to be allowed to list them.
func Tree(t testing.TB, c *zk.Conn, path string) (all []string) {
	t.Helper()
	names, _, err := c.Children(path)
	if err != nil {
		t.Fatalf("Children(%s) = %v", path, err)
	}
	for _, name := range names {
		all = append(all, Tree(t, c, path+"/"+name)...)
	}
	return append(all, path)
}

// Journal keeps the log.
type Journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (j *Journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// String is the whole log so far.
func (j *Journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// Has reports whether the log has some words.
func (j *Journal) Has(words string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Contains(j.text.String(), words)
}

// Recorder keeps the events of a listener.
type Recorder[T any] struct {
	mu  sync.Mutex
	all []T
}

// Take is the listener.
func (r *Recorder[T]) Take(ev T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, ev)
}

// Events are the events so far.
func (r *Recorder[T]) Events() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// Wait waits for the nth event.
func (r *Recorder[T]) Wait(t testing.TB, n int) []T {
	t.Helper()
	Until(t, "events", func() bool { return len(r.Events()) >= n })
	return r.Events()
}

// KillSession ends a session behind a proxy, as if it had expired. It returns when the session
// serves no caller any more.
func KillSession(t testing.TB, s *session.Session, p *testserver.Proxy) {
	t.Helper()
	Until(t, "session killed", func() bool {
		err := testserver.KillSession(testserver.SharedZooKeeper(t)[0], s.Status.ID(), Password(p))
		return err == nil || s.Status.Err() != nil
	})
	// If the client reconnects while a server is closing the session, the server lets it in
	// and then answers nothing.
	p.Cut()
	Await(t, "session over", s.Status.Over())
}
