package testserver_test

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testserver.M{M: m})
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// connect opens a session and waits for it. It is closed in the clean-up.
func connect(t *testing.T, timeout time.Duration, hosts ...string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect(hosts, timeout, zk.WithLogger(silent{}))
	if err != nil {
		t.Fatalf("Connect(%v) = %v", hosts, err)
	}
	t.Cleanup(conn.Close)
	eventually(t, "a session", func() bool { return conn.State() == zk.StateHasSession })
	return conn
}

// eventually waits for a condition that another process brings about.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(testserver.StartTimeout)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no %s within %v", what, testserver.StartTimeout)
		}
	}
}

// happens waits for a signal.
func happens(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(testserver.StartTimeout):
		t.Fatalf("no %s within %v", what, testserver.StartTimeout)
	}
}

// pending fails the test if the signal has come already.
func pending(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
		t.Fatalf("%s came too early", what)
	default:
	}
}

func mustExist(t *testing.T, conn *zk.Conn, path string, want bool) {
	t.Helper()
	got, _, err := conn.Exists(path)
	if err != nil || got != want {
		t.Fatalf("Exists(%q) = %v, %v, want %v", path, got, err, want)
	}
}

func create(conn *zk.Conn, path string) error {
	_, err := conn.Create(path, []byte("x"), 0, zk.WorldACL(zk.PermAll))
	return err
}

func lost(err error) bool {
	return errors.Is(err, zk.ErrConnectionClosed)
}
