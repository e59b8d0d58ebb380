package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// This file is about a Redis that answers reads and refuses writes, such as one without memory, or
// without its replicas. Requests reach their Begin there, and are refused.

// refusing is an engine in this process, with what it needs to send requests.
type refusing struct {
	engine *idem.Engine
	policy idem.Policy
	next   atomic.Int64
}

func newRefusing(t *testing.T, locker driver.Locker, store driver.Store) *refusing {
	t.Helper()
	policy, err := idem.Policy{Name: "pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	engine, err := idem.New(locker, store)
	if err != nil {
		t.Fatal(err)
	}
	return &refusing{engine: engine, policy: policy}
}

// key is a new key that lies in one of these shards.
func (r *refusing) key(shards func(shard int) bool) idem.Key {
	for {
		key := idem.Key("key-" + strconv.FormatInt(r.next.Add(1), 10))
		if id := idem.NewKeyID("", key); shards(int(id[0]) % redislock.Shards) {
			return key
		}
	}
}

// request sends a request with such a key.
func (r *refusing) request(shards func(shard int) bool) error { return r.pay(r.key(shards)) }

func (r *refusing) pay(key idem.Key) error {
	_, err := r.engine.Do(context.Background(), idem.Operation{Transport: idem.TransportHTTP, Key: key, Policy: &r.policy,
		Fingerprint: func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "pay") }},
		func(context.Context) (idem.Response, error) { return idem.Response{Status: 201}, nil })
	return err
}

// storm sends requests from several clients, and requires that all are refused as unavailable. It returns how many the servers may
// not have answered, as on a starved machine. The engine undoes their Begins until the store takes writes again.
func (r *refusing) storm(t *testing.T, requests int, shards func(int) bool) (unanswered int) {
	t.Helper()
	var left, silent atomic.Int64
	left.Store(int64(requests))
	var clients sync.WaitGroup
	for range 32 {
		clients.Go(func() {
			for left.Add(-1) >= 0 {
				err := r.request(shards)
				if refusal, ok := errors.AsType[*idem.Refusal](err); !ok || refusal.Code != idem.CodeUnavailable {
					t.Errorf("request = %v, want it refused as unavailable", err)
					return
				}
				if !errors.Is(err, driver.ErrNoWrites) {
					silent.Add(1)
				}
			}
		})
	}
	clients.Wait()
	t.Logf("%d of %d requests may have no answer", silent.Load(), requests)
	return int(silent.Load())
}

func all(int) bool { return true }

// redisClient opens a client for the servers at addr.
func redisClient(t *testing.T, addr string) goredis.UniversalClient {
	t.Helper()
	c, err := redisstore.Connect(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func redisStore(t *testing.T, client goredis.UniversalClient) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(t.Context(), client, redisstore.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// commands is how many commands a server has processed.
func commands(t *testing.T, r *testserver.Redis) int {
	t.Helper()
	lines, err := r.Do("INFO", "stats")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(strings.Join(lines, "\n"), "\n") {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "total_commands_processed:"); ok {
			count, err := strconv.Atoi(n)
			if err != nil {
				t.Fatal(err)
			}
			return count
		}
	}
	t.Fatalf("INFO stats = %q, want the commands", lines)
	return 0
}

func mustDo(t *testing.T, r *testserver.Redis, args ...string) {
	t.Helper()
	if _, err := r.Do(args...); err != nil {
		t.Fatalf("%v = %v", args, err)
	}
}

// The locks are in a Redis of their own, and the one with the records is full. Refused requests leave
// nothing behind, however many they are.
func TestFullRedisIsNotWorkedFor(t *testing.T) {
	locks, records := testserver.StartRedis(t), testserver.StartRedis(t)
	lockClient := redisClient(t, locks.URL())
	locker, err := redislock.New(t.Context(), lockClient)
	if err != nil {
		t.Fatal(err)
	}
	r := newRefusing(t, locker, redisStore(t, redisClient(t, records.URL())))
	if err := r.request(all); err != nil {
		t.Fatalf("request = %v, want it paid", err)
	}
	goroutines := runtime.NumGoroutine()
	mustDo(t, records, "CONFIG", "SET", "maxmemory", "1")
	unanswered := r.storm(t, 2_000, all)
	kit.Eventually(t, "the locks are free, and no goroutine is left", func() error {
		held, err := lockClient.Keys(t.Context(), "*lock:*").Result()
		if n := runtime.NumGoroutine(); err != nil || len(held) > 0 || n > goroutines+64+2*unanswered { // some are of connections
			return fmt.Errorf("%w: %d locks, %d goroutines, before %d, %w", kit.ErrNotYet, len(held), n, goroutines, err)
		}
		return nil
	})
	before := commands(t, records)
	kit.Eventually(t, "a pause", after(2*time.Second))
	if n := commands(t, records) - before; n > 50+10*unanswered {
		t.Errorf("the full Redis got %d commands in 2 s without a request", n)
	}
	if err := r.engine.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if err := locker.Close(t.Context()); err != nil {
		t.Errorf("Close() of the locker = %v", err)
	}
}

// One of three primaries refuses writes, for want of a replica. The keys of the other two are not
// concerned, however long that lasts.
func TestPartialOutageStaysPartial(t *testing.T) {
	ensemble := testserver.StartZooKeeper(t)
	cluster := testserver.StartRedisCluster(t, 3)
	client, err := zookeeper.Open(t.Context(), zookeeper.Config{Servers: ensemble.Hosts(), MaxLocksPerSession: 64})
	if err != nil {
		t.Fatal(err)
	}
	records := redisClient(t, "redis://"+strings.Join(cluster.Addrs(), ",redis://"))
	r := newRefusing(t, client.Locker(), redisStore(t, records))
	sick := cluster.Nodes()[0]
	sickShard := make(map[int]bool)
	for shard := range redislock.Shards {
		node, err := cluster.NodeFor(fmt.Sprintf("idem:{%02x}:open", shard))
		if err != nil {
			t.Fatal(err)
		}
		sickShard[shard] = node.Addr() == sick.Addr()
	}
	isSick := func(shard int) bool { return sickShard[shard] }
	isHealthy := func(shard int) bool { return !sickShard[shard] }
	healthy := func(when string) {
		t.Helper()
		for range 64 {
			if err := r.request(isHealthy); err != nil {
				t.Fatalf("%s: request to a healthy primary = %v", when, err)
			}
		}
	}
	healthy("before")
	paid := r.key(isSick)
	if err := r.pay(paid); err != nil {
		t.Fatalf("request = %v", err)
	}
	goroutines := runtime.NumGoroutine()
	mustDo(t, sick, "CONFIG", "SET", "min-replicas-to-write", "1")
	unanswered := r.storm(t, 1_000, isSick)
	healthy("while one primary refuses writes")
	if err := r.pay(paid); err != nil {
		t.Errorf("repeat of a payment at the sick primary = %v, want it replayed", err)
	}
	if err := r.engine.Ping(t.Context()); !errors.Is(err, driver.ErrNoWrites) {
		t.Errorf("Ping() = %v, want %v", err, driver.ErrNoWrites)
	}
	kit.Eventually(t, "no goroutine is left", func() error {
		if n := runtime.NumGoroutine(); n > goroutines+64+2*unanswered {
			return fmt.Errorf("%w: %d goroutines, before %d", kit.ErrNotYet, n, goroutines)
		}
		return nil
	})
	mustDo(t, sick, "CONFIG", "SET", "min-replicas-to-write", "0")
	kit.Eventually(t, "the sick primary's keys work again", func() error {
		if err := r.request(isSick); err != nil {
			return fmt.Errorf("%w: %w", kit.ErrNotYet, err)
		}
		return nil
	})
	if err := r.engine.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Errorf("Close() of the client = %v", err)
	}
}

// after is a condition for kit.Eventually that holds a while later.
func after(d time.Duration) func() error {
	then := time.Now().Add(d)
	return func() error {
		if time.Now().Before(then) {
			return kit.ErrNotYet
		}
		return nil
	}
}
