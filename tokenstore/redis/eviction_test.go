package redisstore

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// asksAlways has a store ask for the eviction policy in every Begin.
func asksAlways() Option { return func(c *config) { c.evictionEvery = 0 } }

// asksOnce has a store ask its servers for their eviction policy at the start alone.
func asksOnce() Option { return func(c *config) { c.evictionEvery = time.Hour } }

func setPolicy(t *testing.T, r *testserver.Redis, policy string) {
	t.Helper()
	if _, err := r.Do("CONFIG", "SET", "maxmemory-policy", policy); err != nil {
		t.Fatal(err)
	}
}

func TestEvictionAfterTheStartIsNoticed(t *testing.T) {
	r := testserver.StartRedis(t)
	var out bytes.Buffer
	s := open(t, connect(t, r.URL()), asksAlways(), WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
	done, req := newAttempt(driver.ClientKey)
	begun, err := s.Begin(t.Context(), done, req)
	if err != nil || !begun.Begun {
		t.Fatalf("Begin(%v) = %v, %v", done, begun.Begun, err)
	}
	setPolicy(t, r, "allkeys-lru")
	id, req := newAttempt(driver.ClientKey)
	for range 3 {
		lock := driver.OfferedLock{Owner: strings.Repeat("o", 32), Nonce: req.Nonce, TTL: time.Minute}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // without a deadline it only reads
		if res, err := s.BeginLocked(ctx, id, req, lock); err != nil || res.Begun || res.Record.State != driver.StateNone {
			t.Errorf("BeginLocked(%v) = %v, %v, want no record and no attempt", id, res.Begun, err)
		}
		cancel()
		if res, err := s.Begin(t.Context(), id, req); !errors.Is(err, driver.ErrUnavailable) || res.Begun || !strings.Contains(err.Error(), "allkeys-lru") {
			t.Errorf("Begin(%v) = %v, %v, want %v that names the policy", id, res.Begun, err, driver.ErrUnavailable)
		}
	}
	if err := s.Ping(t.Context()); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "allkeys-lru") {
		t.Errorf("Ping() = %v, want %v that names the policy", err, driver.ErrUnavailable)
	}
	// Running executions are settled, and existing records can be read.
	if res, err := s.Settle(t.Context(), done, completion(begun.Record.Attempt, "done")); err != nil || !res.Settled {
		t.Errorf("Settle(%v) = %v, %v", done, res.Settled, err)
	}
	if rec, err := s.Get(t.Context(), done); err != nil || rec.State != driver.StateCompleted {
		t.Errorf("Get(%v) = %v, %v", done, rec.State, err)
	}
	if n := strings.Count(out.String(), "began to evict"); n != 1 {
		t.Errorf("%d log lines of the change, want 1: %s", n, &out)
	}
	setPolicy(t, r, "noeviction")
	if res, err := s.Begin(t.Context(), id, req); err != nil || !res.Begun {
		t.Errorf("Begin(%v) after the policy was mended = %v, %v", id, res.Begun, err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v", err)
	}
}

// One primary of a cluster is enough for a Ping to fail, if it takes no writes or evicts keys.
func TestOnePrimaryOfAClusterThatIsUnfitIsNoticed(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3)
	s := open(t, connect(t, clusterAddr(c)), asksAlways(), quiet())
	for i, node := range c.Nodes() {
		do(t, node, "CONFIG", "SET", "maxmemory", "1")
		if err := s.Ping(t.Context()); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("Ping() while primary %d is full = %v, want %v that says so", i, err, driver.ErrUnavailable)
		}
		do(t, node, "CONFIG", "SET", "maxmemory", "0")
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v", err)
	}
	setPolicy(t, c.Nodes()[1], "volatile-ttl")
	id, req := newAttempt(driver.ClientKey)
	if _, err := s.Begin(t.Context(), id, req); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "volatile-ttl") {
		t.Errorf("Begin(%v) = %v, want %v that names the policy", id, err, driver.ErrUnavailable)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "volatile-ttl") {
		t.Errorf("Ping() = %v, want %v that names the policy", err, driver.ErrUnavailable)
	}
}

func TestEvictionIsNotAskedForWithinTheInterval(t *testing.T) {
	r := testserver.StartRedis(t)
	s := open(t, connect(t, r.URL()), quiet(), asksOnce())
	setPolicy(t, r, "allkeys-lru")
	id, req := newAttempt(driver.ClientKey)
	if res, err := s.Begin(t.Context(), id, req); err != nil || !res.Begun {
		t.Errorf("Begin(%v) within the interval = %v, %v", id, res.Begun, err)
	}
}

// A server that does not answer for a moment counts as unchanged.
func TestEvictionOfAServerThatDoesNotTellStaysAsItWas(t *testing.T) {
	r := testserver.StartRedis(t)
	s := open(t, connect(t, r.URL()), asksAlways(), quiet())
	setPolicy(t, r, "allkeys-lru")
	id, req := newAttempt(driver.ClientKey)
	if _, err := s.Begin(t.Context(), id, req); !errors.Is(err, driver.ErrUnavailable) {
		t.Fatalf("Begin(%v) = %v, want %v", id, err, driver.ErrUnavailable)
	}
	r.Pause()
	defer r.Resume()
	if _, err := s.Begin(short(t), id, req); err == nil || !strings.Contains(err.Error(), "allkeys-lru") {
		t.Errorf("Begin(%v) while the server is silent = %v, want an error that names the policy", id, err)
	}
}
