package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestServesAndStops(t *testing.T) {
	t.Parallel()
	p := serve(t)
	if status, body, err := p.request("POST", "/v1/payments", "k", orderBody); status != 201 || err != nil {
		t.Errorf("payment: %d %s %v, want 201", status, body, err)
	}
	p.term()
	if code := p.exit(10 * time.Second); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	if out := p.lines(&p.stdout); len(out) != 1 {
		t.Errorf("standard output %q, want the ready line only", out)
	}
}

func TestRunningPaymentIsFinishedBeforeTheEnd(t *testing.T) {
	t.Parallel()
	p := serve(t, "--processor-latency", "1s", "--log-level", "debug")
	paid := make(chan int, 1)
	go func() {
		status, _, _ := p.request("POST", "/v1/payments", "k", orderBody)
		paid <- status
	}()
	p.await(&p.stderr, "at=before-ledger")
	p.term()
	if status := <-paid; status != 201 {
		t.Errorf("payment that ran at SIGTERM: %d, want 201", status)
	}
	if code := p.exit(10 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	p.await(&p.stderr, "at=answered")
}

// A silent connection does not keep the service alive.
func TestMuteConnectionsEnd(t *testing.T) {
	t.Parallel()
	p := serve(t)
	for _, addr := range []string{strings.TrimPrefix(p.url, "http://"), p.grpc} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	p.term()
	if code := p.exit(15 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestHelpExits0(t *testing.T) {
	t.Parallel()
	if code := launch(t, "--help").exit(10 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// silent accepts connections and says nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func TestWhatCannotStartExits1WithOneLine(t *testing.T) {
	t.Parallel()
	mute, nobody := silent(t), "127.0.0.1:1"
	zk := strings.Join(testserver.SharedZooKeeper(t), ",") + testserver.Chroot(t)
	inUse := serve(t)
	evicting := testserver.StartRedis(t, testserver.WithRedisArgs("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")).URL()
	tests := map[string][]string{
		"unknown flag":            {"--bogus"},
		"bad value":               {"--wait", "soon"},
		"later":                   {"--durable-markers"},
		"no Redis for the lock":   {"--redis", "redis://" + nobody},
		"mute Redis for the lock": {"--redis", "redis://" + mute},
		"short life of a lock":    {"--redis", testserver.StartRedis(t).URL(), "--session-timeout", "900ms"},
		"port in use":             {"--http-addr", strings.TrimPrefix(inUse.url, "http://")},
		"gRPC port in use":        {"--grpc-addr", inUse.grpc},
		"one port for both":       {"--http-addr", "127.0.0.1:45671", "--grpc-addr", "127.0.0.1:45671"},
		"no ZooKeeper":            {"--zookeeper", nobody},
		"mute ZooKeeper":          {"--zookeeper", mute},
		"bad chroot":              {"--zookeeper", nobody + "/a//b"},
		"session too short":       {"--zookeeper", zk, "--redis", evicting, "--session-timeout", "3s", "--zookeeper-tick", "2s"},
		"no Redis":                {"--zookeeper", zk, "--zookeeper-tick", "500ms", "--redis", "redis://" + nobody},
		"mute Redis":              {"--zookeeper", zk, "--zookeeper-tick", "500ms", "--redis", "redis://" + mute},
		"Redis that evicts":       {"--zookeeper", zk, "--zookeeper-tick", "500ms", "--redis", evicting},
		"store without a server":  {"--token-store", "redis"},
		"bad Redis URL":           {"--zookeeper", zk, "--zookeeper-tick", "500ms", "--redis", "http://x"},
		"no PostgreSQL":           {"--database", "postgres://user:hidden@" + nobody + "/x"},
		"mute PostgreSQL":         {"--database", "postgres://user:hidden@" + mute + "/x"},
		"no MySQL":                {"--database", "mysql://user:hidden@" + nobody + "/x"},
		"mute MySQL":              {"--database", "mysql://user:hidden@" + mute + "/x"},
		"MySQL without a name":    {"--database", "mysql://user:hidden@x"},
		"unknown database":        {"--database", "oracle://user:hidden@x/y"},
		"password not escaped":    {"--database", "postgres://user:hid@den@x/y"},
		"no directory for SQLite": {"--database", "sqlite:/nowhere/x.db"},
		"SQLite on read-only":     {"--database", "sqlite:/proc/x.db"},
	}
	for name, args := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := launch(t, args...)
			if code := p.exit(30 * time.Second); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			said := p.lines(&p.stderr)
			if len(said) != 1 || !strings.HasPrefix(said[0], "example-payments: ") || strings.Contains(said[0], "hidden") {
				t.Errorf("said %q, want one line, without the password", said)
			}
			if out := p.lines(&p.stdout); len(out) != 0 {
				t.Errorf("standard output %q, want nothing", out)
			}
		})
	}
}

func TestTakenPortSuggestsAFreeOne(t *testing.T) {
	t.Parallel()
	inUse := serve(t)
	for flag, addr := range map[string]string{"--http-addr": strings.TrimPrefix(inUse.url, "http://"), "--grpc-addr": inUse.grpc} {
		for _, more := range [][]string{nil, {"--demo"}} {
			p := launch(t, append(more, flag, addr)...)
			if code := p.exit(15 * time.Second); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			p.await(&p.stderr, flag+" 127.0.0.1:0 takes any free port")
		}
	}
}

// Someone who wants to see an outcome in doubt is told that this store leaves none.
func TestResolverNoneIsExplainedWhereNothingIsInDoubt(t *testing.T) {
	t.Parallel()
	p := serve(t, "--demo", "--resolver", "none")
	p.await(&p.stderr, "leaves no outcome in doubt")
}

func TestSecondInstanceOnOneFileExits1(t *testing.T) {
	t.Parallel()
	database := "sqlite:" + filepath.Join(t.TempDir(), "ledger.db")
	first := serve(t, "--database", database)
	second := launch(t, "--database", database)
	if code := second.exit(15 * time.Second); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	second.await(&second.stderr, "claimed by another instance")
	if status, _, err := first.request("POST", "/v1/payments", "k", orderBody); status != 201 {
		t.Errorf("payment at the first instance: %d %v, want 201", status, err)
	}
	first.kill()
	serve(t, "--database", database).wantPayments(1)
}
