package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// locks are the lock services that instances can share.
var locks = []string{"zookeeper", "redis"}

// sharedFlags are the flags of instances that share lock, store and ledger.
// Redis is the test's own, because the shared one has records of other witnesses.
func sharedFlags(t *testing.T, lock string) []string {
	t.Helper()
	flags := []string{
		"--redis", testserver.StartRedis(t).URL(), "--session-timeout", "4s",
		"--database", "sqlite:" + filepath.Join(t.TempDir(), "ledger.db"),
		"--log-level", "debug",
	}
	if lock == "redis" {
		return flags
	}
	return append(flags, "--zookeeper", strings.Join(testserver.SharedZooKeeper(t), ",")+testserver.Chroot(t), "--zookeeper-tick", "500ms")
}

// withEachLock runs a test on instances that share one lock service or another.
func withEachLock(t *testing.T, test func(t *testing.T, lock string)) {
	t.Helper()
	t.Parallel()
	for _, lock := range locks {
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			test(t, lock)
		})
	}
}

func TestInstancesShareKeys(t *testing.T) {
	withEachLock(t, func(t *testing.T, lock string) {
		flags := sharedFlags(t, lock)
		one, two := serve(t, flags...), serve(t, flags...)
		one.WaitLog(t, "lock="+lock)
		status, first, err := one.request("POST", "/v1/payments", "k", orderBody)
		if status != 201 || err != nil {
			t.Fatalf("payment: %d %s %v, want 201", status, first, err)
		}
		if status, again, err := two.request("POST", "/v1/payments", "k", orderBody); status != 201 || again != first {
			t.Errorf("repeat at the other instance: %d %s %v, want 201 %s", status, again, err, first)
		}
		two.wantPayments(1)
		for _, p := range []*process{one, two} {
			if status, body, err := p.request("GET", "/readyz", "", ""); status != 200 {
				t.Errorf("/readyz: %d %s %v, want 200", status, body, err)
			}
			p.stops()
		}
	})
}

// An instance is killed before or after it has paid, and the client asks another. tests/faults does the
// same at more points, with locks in ZooKeeper.
func TestKilledInstance(t *testing.T) {
	t.Parallel()
	for at, latency := range map[string]string{"at=before-ledger": "10m", "at=after-ledger": "8s"} { // half of it before the payment, and half after it
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			flags := sharedFlags(t, "redis")
			victim := serve(t, append(flags, "--processor-latency", latency)...)
			gone := make(chan error, 1)
			go func() {
				_, _, err := victim.request("POST", "/v1/payments", "k", orderBody)
				gone <- err
			}()
			victim.WaitLog(t, at)
			victim.Kill(t)
			if err := <-gone; err == nil {
				t.Fatal("the client was answered before the instance was killed")
			}
			heir := serve(t, flags...)
			status, body := heir.payUntilSettled("k")
			if status != 201 {
				t.Errorf("repeat: %d %s, want 201", status, body)
			}
			heir.wantPayments(1)
			if _, again := heir.payUntilSettled("k"); again != body {
				t.Errorf("repeat: %s, want %s", again, body)
			}
		})
	}
}

// An instance is paused past its session before it pays, the client asks another, and
// the paused one wakes up.
func TestPausedInstance(t *testing.T) {
	t.Parallel()
	flags := sharedFlags(t, "redis")
	zombie := serve(t, append(flags, "--processor-latency", "2s")...)
	heir := serve(t, flags...)
	first := make(chan string, 1)
	go func() {
		_, body, _ := zombie.request("POST", "/v1/payments", "k", orderBody)
		first <- body
	}()
	zombie.WaitLog(t, "at=before-ledger")
	zombie.Pause(t)
	status, body := heir.payUntilSettled("k")
	if status != 201 {
		t.Errorf("repeat at the other instance: %d %s, want 201", status, body)
	}
	zombie.Resume(t)
	if got := <-first; got != body && !strings.Contains(got, "ownership-lost") {
		t.Errorf("the paused instance answered %s, want ownership-lost or %s", got, body)
	}
	heir.wantPayments(1)
	if _, again := zombie.payUntilSettled("k"); again != body {
		t.Errorf("repeat at the paused instance: %s, want %s", again, body)
	}
}

// A handler that still runs after the grace period keeps its lock until the session
// times out.
func TestHandlerThatIsGivenUpKeepsItsLock(t *testing.T) {
	withEachLock(t, func(t *testing.T, lock string) {
		hosts, chroot := testserver.SharedZooKeeper(t), testserver.Chroot(t)
		flags := []string{"--zookeeper", strings.Join(hosts, ",") + chroot, "--zookeeper-tick", "500ms", "--token-store", "memory"}
		url := testserver.StartRedis(t).URL()
		if lock == "redis" {
			flags = []string{"--redis", url, "--token-store", "memory"}
		}
		cfg, err := ParseConfig(append(flags, "--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0", "--session-timeout", "10s", "--processor-latency", "1h"),
			func(string) string { return "" }, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(slog.DiscardHandler)
		app, err := Start(t.Context(), cfg, log)
		if err != nil {
			t.Fatal(err)
		}
		app.grace = 50 * time.Millisecond
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- app.Serve(ctx, io.Discard) }()

		p := &process{t: t, url: "http://" + app.Addr()}
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			_, _, _ = p.request("POST", "/v1/payments", "k", orderBody)
		}()
		for state := ""; !strings.Contains(state, "pending"); {
			if _, state, err = p.request("GET", "/v1/idempotency", "k", ""); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "given up") {
			t.Errorf("Serve() = %v, want that it gave up", err)
		}
		<-answered

		other := &App{cfg: cfg, log: log, timeline: server.NewTimeline()}
		if err := errors.Join(other.openTelemetry(t.Context()), other.openEngine(t.Context())); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := other.disconnect(); err != nil {
				t.Error(err)
			}
		}()
		id := idem.NewKeyID("merchant_demo", "k")
		if lease, err := other.engine.Locker().TryAcquire(t.Context(), driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()}); err == nil {
			t.Errorf("the lock was free: %v", lease.Fence())
		}
		if err := app.engine.Close(context.Background()); err != nil { // the session is gone: the handler gives up by itself
			t.Error(err)
		}
		if err := app.disconnect(); err != nil {
			t.Error(err)
		}
	})
}
