package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/record"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

func TestMain(m *testing.M) {
	if os.Getenv(ranAsIdemctl) != "" {
		main()
	}
	testserver.ParallelTests(4) // most of them wait for a server
	goleak.VerifyTestMain(testserver.M{M: m})
}

const httpRoute = "POST /v1/payments"

// ran is the result of a run.
type ran struct {
	code           int
	stdout, stderr string
}

func idemctl(t *testing.T, env map[string]string, args ...string) ran {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, func(name string) string { return env[name] }, nil, &stdout, &stderr)
	return ran{code, stdout.String(), stderr.String()}
}

// openStore gives the store of a Redis of the test's own.
func openStore(t *testing.T, opts ...redisstore.Option) (*redisstore.Store, *testserver.Redis) {
	t.Helper()
	server := testserver.StartRedis(t)
	store, err := redisstore.New(t.Context(), redisClient(t, server), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return store, server
}

// begin starts an attempt for a key of scope "m". settle also settles it.
func begin(t *testing.T, s driver.Store, key idem.Key) driver.Attempt {
	t.Helper()
	return beginFor(t, s, key, 0, time.Hour)
}

// beginFor starts an attempt on a route with these times.
func beginFor(t *testing.T, s driver.Store, key idem.Key, resultTTL, keyTTL time.Duration) driver.Attempt {
	t.Helper()
	fp, err := idem.NewFingerprint(idem.FingerprintVersion, "test")
	if err != nil {
		t.Fatal(err)
	}
	fence := driver.Fence{Domain: "d", Token: 7 + uint64(stateOf(t, s, key).Attempt.Number)}
	got, err := s.Begin(t.Context(), idem.NewKeyID("m", key), driver.BeginRequest{Route: "POST /pay",
		Fence: fence, Nonce: driver.NewNonce(), Fingerprint: fp, ResultTTL: resultTTL, KeyTTL: keyTTL})
	if err != nil || !got.Begun {
		t.Fatalf("Begin = %+v, %v", got, err)
	}
	return got.Record.Attempt
}

func settle(t *testing.T, s driver.Store, key idem.Key, state driver.State, r *idem.Response) {
	t.Helper()
	a := begin(t, s, key)
	got, err := s.Settle(t.Context(), idem.NewKeyID("m", key), driver.Settlement{Attempt: a, ID: a.Nonce, State: state,
		Response: (*driver.Response)(r), ResultTTL: time.Hour, KeyTTL: time.Hour})
	if err != nil || !got.Settled {
		t.Fatalf("Settle = %+v, %v", got, err)
	}
}

func showJSON(t *testing.T, env map[string]string, args ...string) record.Row {
	t.Helper()
	got := idemctl(t, env, append([]string{"--json", "record", "show", "--scope", "m"}, args...)...)
	var r record.Row
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.code != 0 || strings.Count(got.stdout, "\n") != 1 {
		t.Fatalf("exit code %d, %q %q, want one JSON object", got.code, got.stdout, got.stderr)
	}
	return r
}

// awaitAge waits until a record is so old by the store's clock.
func awaitAge(t *testing.T, s driver.Store, age time.Duration) {
	t.Helper()
	for {
		page, err := s.ListOpen(t.Context(), driver.OpenQuery{OlderThan: age})
		list := page.Records
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 0 {
			return
		}
	}
}

func wipe(t *testing.T, server *testserver.Redis) {
	t.Helper()
	if _, err := server.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
}

// resolveExits runs record resolve on a key of scope m and checks its exit code.
func resolveExits(t *testing.T, env map[string]string, want int, args ...string) ran {
	t.Helper()
	got := idemctl(t, env, append([]string{"--json", "record", "resolve", "--scope", "m"}, args...)...)
	if lines := strings.Count(got.stderr, "\n"); got.code != want || want != 0 && (lines != 1 || got.stdout != "") {
		t.Errorf("record resolve %q: exit code %d, %q, %q, want %d", args, got.code, got.stdout, got.stderr, want)
	}
	return got
}

// stateOf a key of scope m.
func stateOf(t *testing.T, s driver.Store, key idem.Key) driver.Record {
	t.Helper()
	rec, err := s.Get(t.Context(), idem.NewKeyID("m", key))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// beginUnder starts an attempt under a lease, as an engine does: lock and record have one nonce.
func beginUnder(t *testing.T, s driver.Store, l driver.Locker, key idem.Key) driver.Lease {
	t.Helper()
	id, nonce := idem.NewKeyID("m", key), driver.NewNonce()
	lease, err := l.TryAcquire(t.Context(), driver.LockRequest{KeyID: id, Nonce: nonce})
	if err != nil {
		t.Fatal(err)
	}
	fp, err := idem.NewFingerprint(idem.FingerprintVersion, "test")
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Begin(t.Context(), id, driver.BeginRequest{Route: httpRoute, Fence: lease.Fence(), Nonce: nonce, Fingerprint: fp, KeyTTL: time.Hour})
	if err != nil || !got.Begun {
		t.Fatalf("Begin = %+v, %v", got, err)
	}
	return lease
}

// redisClient is a client of a server until the test ends.
func redisClient(t *testing.T, server *testserver.Redis) goredis.UniversalClient {
	t.Helper()
	client, err := redisstore.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// redisLocker locks in a Redis.
func redisLocker(t *testing.T, server *testserver.Redis) driver.Locker {
	t.Helper()
	l, err := redislock.New(t.Context(), redisClient(t, server))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Abandon)
	return l
}

// zooKeeperLocker locks in the ensemble of an environment.
func zooKeeperLocker(t *testing.T, env map[string]string) driver.Locker {
	t.Helper()
	servers, chroot, err := zookeeper.ParseConnectString(env["IDEMCTL_ZOOKEEPER"])
	if err != nil {
		t.Fatal(err)
	}
	client, err := zookeeper.Open(t.Context(), zookeeper.Config{Servers: servers, Chroot: chroot, SessionTimeout: 20 * time.Second, TickTime: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Abandon)
	return client.Locker()
}

// ensembleEnv names a chroot of the shared ZooKeeper, which has a short tick.
func ensembleEnv(t *testing.T, redis string) map[string]string {
	t.Helper()
	return map[string]string{"IDEMCTL_REDIS": redis, "IDEMCTL_ZOOKEEPER": strings.Join(testserver.SharedZooKeeper(t), ",") + testserver.Chroot(t),
		"IDEMCTL_ZOOKEEPER_TICK": "500ms", "IDEMCTL_SESSION_TIMEOUT": "4s"}
}

// answerFile writes a FILE.
func answerFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "answer.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
