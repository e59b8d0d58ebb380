package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// What runs at SIGTERM is finished, over both transports, and the ready line is all of standard output.
func TestRunningPaymentsAreFinishedBeforeTheEnd(t *testing.T) {
	t.Parallel()
	p := serve(t, "--token-store", "memory", "--processor-latency", "1s", "--log-level", "debug")
	called, paid := make(chan error, 1), make(chan int, 1)
	go func() {
		_, err := p.call("over-grpc")
		called <- err
	}()
	go func() {
		status, _, _ := p.request("POST", "/v1/payments", "k", orderBody)
		paid <- status
	}()
	kit.Eventually(t, "both payments", func() error {
		if p.Stderr.Count("at=before-ledger") < 2 {
			return kit.ErrNotYet
		}
		return nil
	})
	p.stops()
	if status, err := <-paid, <-called; status != 201 || err != nil {
		t.Errorf("payments that ran at SIGTERM: %d over HTTP and %v over gRPC, want both made", status, err)
	}
	if out := p.Stdout.Lines(); len(out) != 1 {
		t.Errorf("standard output %q, want the ready line only", out)
	}
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
	p.stops()
}

func TestHelpExits0(t *testing.T) {
	t.Parallel()
	if code := launch(t, "--help").WaitExit(t).Code; code != 0 {
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
			p := refused(t, args...)
			said := p.Stderr.Lines()
			if len(said) != 1 || !strings.HasPrefix(said[0], "example-payments: ") || strings.Contains(said[0], "hidden") {
				t.Errorf("said %q, want one line, without the password", said)
			}
			if out := p.Stdout.Lines(); len(out) != 0 {
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
			refused(t, append(more, flag, addr)...).WaitLog(t, flag+" 127.0.0.1:0 takes any free port")
		}
	}
}

// Someone who wants to see an outcome in doubt is told that this store leaves none.
func TestResolverNoneIsExplainedWhereNothingIsInDoubt(t *testing.T) {
	t.Parallel()
	p := serve(t, "--demo", "--resolver", "none")
	p.WaitLog(t, "leaves no outcome in doubt")
}

func TestSecondInstanceOnOneFileExits1(t *testing.T) {
	t.Parallel()
	database := "sqlite:" + filepath.Join(t.TempDir(), "ledger.db")
	first := serve(t, "--database", database)
	refused(t, "--database", database).WaitLog(t, "claimed by another instance")
	if status, _, err := first.request("POST", "/v1/payments", "k", orderBody); status != 201 {
		t.Errorf("payment at the first instance: %d %v, want 201", status, err)
	}
	first.Kill(t)
	serve(t, "--database", database).wantPayments(1)
}
