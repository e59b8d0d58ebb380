package main

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// cluster starts an instance on a ZooKeeper and a Redis of the test's own.
func cluster(t *testing.T) (*process, *testserver.ZooKeeper, *testserver.Redis) {
	t.Helper()
	zk, redis := testserver.StartZooKeeper(t), testserver.StartRedis(t)
	return serve(t, "--zookeeper", zk.ConnectString(), "--zookeeper-tick", "500ms", "--session-timeout", "4s",
		"--redis", redis.URL()), zk, redis
}

// requestUntil repeats a request until it is answered with the status.
func (p *process) requestUntil(status int, method, path, key, body string) string {
	p.t.Helper()
	got, answer, err := 0, "", error(nil)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if got, answer, err = p.request(method, path, key, body); got == status {
			return answer
		}
	}
	p.t.Fatalf("%s %s: %d %s %v for 30 s, want %d", method, path, got, answer, err, status)
	return ""
}

func TestOutageIsToldAtOnceAndEnds(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"zookeeper", "redis"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			p, zk, redis := cluster(t)
			pause, resume := zk.Pause, zk.Resume
			if server == "redis" {
				pause, resume = redis.Pause, redis.Resume
			}
			paid := p.requestUntil(http.StatusCreated, "POST", "/v1/payments", "before", orderBody)
			pause()
			p.requestUntil(http.StatusServiceUnavailable, "GET", "/readyz", "", "")
			start := time.Now()
			status, body, err := p.request("POST", "/v1/payments", "meanwhile", orderBody)
			if took := time.Since(start); status != 503 || !strings.Contains(body, `"unavailable"`) || took > 5*time.Second {
				t.Errorf("payment after %v: %d %s %v, want 503 unavailable at once", took, status, body, err)
			}
			if server == "zookeeper" { // replays do not need the lock
				if status, body, err := p.request("POST", "/v1/payments", "before", orderBody); body != paid {
					t.Errorf("replay: %d %s %v, want %s", status, body, err, paid)
				}
			}
			resume()
			p.requestUntil(http.StatusOK, "GET", "/readyz", "", "")
			p.requestUntil(http.StatusCreated, "POST", "/v1/payments", "meanwhile", orderBody)
			p.wantPayments(2)
		})
	}
}

// A Redis that comes back empty serves no new key until the operator says so,
// with idemctl's defaults.
func TestLostRedisIsRefusedUntilItIsAccepted(t *testing.T) {
	t.Parallel()
	p, zk, redis := cluster(t)
	p.requestUntil(http.StatusCreated, "POST", "/v1/payments", "k", orderBody)
	redis.Restart()
	for lost := ""; !strings.Contains(lost, `"store-lost"`); {
		lost = p.requestUntil(http.StatusServiceUnavailable, "POST", "/v1/payments", "k", orderBody)
	}
	p.wantPayments(1)
	dir, err := builtDir()
	if err != nil {
		t.Fatal(err)
	}
	accept := exec.CommandContext(t.Context(), filepath.Join(dir, "idemctl"), "--zookeeper", zk.ConnectString(),
		"--zookeeper-tick", "500ms", "--redis", redis.URL(), "store", "accept")
	if out, err := accept.CombinedOutput(); err != nil || !strings.Contains(string(out), "accepted the loss of 64 shards") {
		t.Fatalf("idemctl store accept: %v: %s", err, out)
	}
	p.requestUntil(http.StatusCreated, "POST", "/v1/payments", "another", orderBody)
}
