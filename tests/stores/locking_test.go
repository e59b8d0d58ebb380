package stores

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// inRedis returns a locker and a store in one Redis, with a prefix of their own.
func inRedis(tb testing.TB, url string, locks []redislock.Option, opts ...redisstore.Option) (*redislock.Locker, *redisstore.Store, goredis.UniversalClient) {
	tb.Helper()
	client, err := redisstore.Connect(url)
	kit.Fatal(tb, err)
	prefix, log := strings.TrimSuffix(testserver.KeyPrefix(tb), ":"), slog.New(slog.DiscardHandler)
	store, err := redisstore.New(tb.Context(), client, append(opts, redisstore.WithPrefix(prefix), redisstore.WithLogger(log))...)
	kit.Fatal(tb, err)
	locker, err := redislock.New(tb.Context(), client, append(locks, redislock.WithPrefix(prefix), redislock.WithLogger(log))...)
	kit.Fatal(tb, err)
	tb.Cleanup(func() {
		_ = locker.Close(context.Background())
		_ = client.Close()
	})
	return locker, store, client
}

// Lock and record of a key in one call keep the rules of both.
func TestLockingStoreInRedis(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (url string, opts []redisstore.Option){
		"one server": func(t *testing.T) (string, []redisstore.Option) { return testserver.SharedRedis(t), nil },
		"a cluster": func(t *testing.T) (string, []redisstore.Option) {
			return "redis://" + strings.Join(testserver.StartRedisCluster(t, 3).Addrs(), ",redis://"), nil
		},
		"a primary with a replica": func(t *testing.T) (string, []redisstore.Option) {
			return testserver.StartSentinel(t, 1).Primary().URL(), []redisstore.Option{redisstore.WithReplicas(1, time.Second)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, opts := start(t)
			idemtest.RunLockingStore(t, func(tb testing.TB) (driver.OfferingLocker, driver.LockingStore) {
				locker, store, _ := inRedis(tb, url, nil, opts...)
				return locker, store
			})
		})
	}
}

// roundTrips counts the commands and pipelines that a client sends.
type roundTrips struct{ n atomic.Int32 }

func (r *roundTrips) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (r *roundTrips) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error { r.n.Add(1); return next(ctx, cmd) }
}

func (r *roundTrips) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error { r.n.Add(1); return next(ctx, cmds) }
}

// A payment with lock and record in one Redis takes two round trips, and a repeat one.
func TestRoundTripsInOneRedis(t *testing.T) {
	t.Parallel()
	locker, store, client := inRedis(t, testserver.SharedRedis(t), nil)
	engine, err := idem.New(locker, store)
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	policy, err := idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}.WithDefaults()
	kit.Fatal(t, err)
	pay := func(key string) {
		t.Helper()
		op := idem.Operation{Scope: "m", Key: idem.Key(key), Policy: &policy, Fingerprint: idem.FingerprintOf("pay")}
		res, err := engine.Do(t.Context(), op, func(context.Context) (idem.Response, error) { return idem.Response{Status: 201}, nil })
		if err != nil || res.Response.Status != 201 {
			t.Fatalf("Do(%s) = %+v, %v", key, res, err)
		}
	}
	pay("first") // the server learns the scripts, and the store the time
	pay("second")
	trips := new(roundTrips)
	client.AddHook(trips)
	for key, want := range map[string]int32{"third": 2, "second": 1} {
		trips.n.Store(0)
		if pay(key); trips.n.Load() != want {
			t.Errorf("%d round trips for %s, want %d", trips.n.Load(), key, want)
		}
	}
}

// With lock and record in one PostgreSQL a payment takes two statements, and a repeat one.
func TestStatementsInOnePostgres(t *testing.T) {
	t.Parallel()
	c := newCombined(t, place{postgres: true})
	for _, call := range []struct {
		key  string
		want int32
	}{{"k", 2}, {"k", 1}, {"another", 2}} {
		c.statements.Store(0)
		if res, err := c.do(call.key, c.pay); err != nil || res.Response.Status != 201 || c.statements.Load() != call.want {
			t.Errorf("Do(%s) = %+v, %v, with %d statements, want %d", call.key, res, err, c.statements.Load(), call.want)
		}
	}
}
