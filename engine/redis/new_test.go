package idemredis_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"log/slog"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	idemredis "github.com/idemkeeper/idemkeeper/engine/redis"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/test/enginetest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
)

func TestMain(m *testing.M) {
	testserver.ParallelTests(4) // they mostly wait for the servers
	goleak.VerifyTestMain(testserver.M{M: m})
}

func connect(t *testing.T, url string) goredis.UniversalClient {
	t.Helper()
	client, err := redisstore.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

var quiet = idemredis.WithLogger(slog.New(slog.DiscardHandler))

func TestNew(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (url string){
		"one server": func(t *testing.T) string { return testserver.SharedRedis(t) },
		"a cluster": func(t *testing.T) string {
			return "redis://" + strings.Join(testserver.StartRedisCluster(t, 3).Addrs(), ",redis://")
		},
		"Sentinel": func(t *testing.T) string {
			return "redis+sentinel://" + strings.Join(testserver.StartSentinel(t, 1).Addrs(), ",") + "/" + testserver.SentinelMaster
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, prefix := connect(t, start(t)), redisstore.WithPrefix(testserver.KeyPrefix(t))
			enginetest.Run(t, "Redis alone", func(t *testing.T, opts ...idem.SetupOption) (*idem.Engine, error) {
				opts = append(opts, quiet, prefix, nil, redislock.WithTTL(5*time.Second))
				return idemredis.New(t.Context(), client, opts...)
			})
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	client := connect(t, testserver.SharedRedis(t))
	deaf := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"})
	ring := goredis.NewRing(&goredis.RingOptions{})
	t.Cleanup(func() { _, _ = deaf.Close(), ring.Close() })
	for name, c := range map[string]struct {
		client goredis.UniversalClient
		opt    idemredis.Option
		want   string
	}{
		"no client":              {nil, nil, "client is nil"},
		"a nil client":           {(*goredis.Client)(nil), nil, "client is nil"},
		"a nil cluster":          {(*goredis.ClusterClient)(nil), nil, "client is nil"},
		"a ring":                 {ring, nil, "want a Client or a ClusterClient"},
		"a client without limit": {deaf, nil, "ContextTimeoutEnabled"},
		"no prefix":              {client, redisstore.WithPrefix(""), "prefix"},
		"locks elsewhere":        {client, redislock.WithPrefix("elsewhere"), "the locks have another prefix"},
		"a short time to live":   {client, redislock.WithTTL(time.Millisecond), "time to live"},
		"read-only":              {client, redisstore.WithReadOnly(), "read-only"},
		"keys to seal":           {client, sealed.Responses(nil), "ring"},
		"an option of no kind":   {client, odd{}, "odd is no option"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := []idemredis.Option{quiet, redisstore.WithPrefix(testserver.KeyPrefix(t)), c.opt}
			if engine, err := idemredis.New(t.Context(), c.client, opts...); err == nil || engine != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("New() = %v, %v, want an error with %q", engine, err, c.want)
			}
		})
	}
}

type odd struct{}

func (odd) ConfiguresEngine() {}

// Two services share a server, and each has its own keys.
func TestPrefixesAreApart(t *testing.T) {
	t.Parallel()
	client, key := connect(t, testserver.SharedRedis(t)), enginetest.NewKey()
	running, end := make(chan struct{}), make(chan struct{})
	for i, handler := range []func() string{func() string { close(running); <-end; return "one" }, func() string { return "two" }} {
		engine, err := idemredis.New(t.Context(), client, quiet, redisstore.WithPrefix(testserver.KeyPrefix(t)))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			go func() { _, _ = enginetest.Pay(engine, key, handler) }()
			<-running
		} else if res, err := enginetest.Pay(engine, key, handler); err != nil || string(res.Response.Body) != "two" {
			t.Errorf("the key of another service: %q, %v, want that it pays", res.Response.Body, err)
		}
		t.Cleanup(func() { _ = engine.Close(context.Background()) })
	}
	close(end)
}

// Answers are unreadable in Redis, and idemctl is told so.
func TestSealedResponses(t *testing.T) {
	t.Parallel()
	client, prefix, key := connect(t, testserver.SharedRedis(t)), redisstore.WithPrefix(testserver.KeyPrefix(t)), enginetest.NewKey()
	ring, err := sealed.ParseRing("k1=" + base64.StdEncoding.EncodeToString(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	for _, opt := range []idemredis.Option{sealed.Responses(ring), sealed.Responses(ring), nil} {
		engine, err := idemredis.New(t.Context(), client, quiet, prefix, opt)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = engine.Close(context.Background()) })
		res, err := enginetest.Pay(engine, key, func() string { return "secret" })
		if readable := err == nil && string(res.Response.Body) == "secret"; readable != (opt != nil) {
			t.Errorf("with the option %v: %q, %v", opt != nil, res.Response.Body, err)
		}
	}
	store, err := redisstore.New(t.Context(), client, prefix, redisstore.WithReadOnly(), redisstore.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	if declared, err := store.Sealed(t.Context()); err != nil || !declared {
		t.Errorf("Sealed() = %v, %v, want true", declared, err)
	}
}

// One logger is that of locks, records and engine.
func TestLogger(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer // a server without an append-only file, and then an operation without a handler
	engine, err := idemredis.New(t.Context(), connect(t, testserver.SharedRedis(t)), redisstore.WithPrefix(testserver.KeyPrefix(t)), idemredis.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = engine.Do(t.Context(), idem.Operation{}, nil)
	if err := engine.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"append-only", "without handler"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has nothing about %q:\n%s", want, &log)
		}
	}
}
