package redisstore

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// A server that evicts loses records, one node of a cluster too. A primary that would be a writable replica goes on with
// its instances after a fail-over.
func TestNewRefusesSettingsOfTheServer(t *testing.T) {
	t.Parallel()
	start := func(args ...string) func(*testing.T) string {
		return func(t *testing.T) string { return testserver.StartRedis(t, testserver.WithRedisArgs(args...)).URL() }
	}
	for _, tt := range []struct {
		addr func(*testing.T) string
		says string
	}{
		{start("--maxmemory-policy", "allkeys-lru"), "noeviction"},
		{start("--replica-read-only", "no"), "replica-read-only"},
		{func(t *testing.T) string {
			c := testserver.StartRedisCluster(t, 3)
			do(t, c.Nodes()[1], "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
			return clusterAddr(c)
		}, "volatile-ttl"},
	} {
		if _, err := New(t.Context(), connect(t, tt.addr(t)), quiet()); err == nil || errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("New() = %v, want a refusal that names %s", err, tt.says)
		}
	}
}

func TestNewWarns(t *testing.T) {
	for name, tt := range map[string]struct {
		addr func(t *testing.T) string
		want []string
		not  []string
	}{
		"of a server that does not tell": {
			func(t *testing.T) string { return "redis://" + startMini(t).Addr() },
			[]string{"does not tell", "append-only"}, nil,
		},
		"of a server without persistence": {
			func(t *testing.T) string { return testserver.StartRedis(t).URL() },
			[]string{"append-only"}, []string{"does not tell"},
		},
		"of nothing where all is well": {
			func(t *testing.T) string {
				return testserver.StartRedis(t, testserver.WithRedisArgs("--appendonly", "yes")).URL()
			},
			nil, []string{"WARN"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			open(t, connect(t, tt.addr(t)), WithLogger(slog.New(slog.NewTextHandler(&out, nil))), witnessed(new(register)))
			for _, s := range tt.want {
				if !strings.Contains(out.String(), s) {
					t.Errorf("New() logs %q, want %q in it", out.String(), s)
				}
			}
			for _, s := range tt.not {
				if strings.Contains(out.String(), s) {
					t.Errorf("New() logs %q, want no %q in it", out.String(), s)
				}
			}
		})
	}
}

func TestNewRefusesClients(t *testing.T) {
	addr := startMini(t).Addr()
	for name, client := range map[string]goredis.UniversalClient{
		"read-only": goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{addr}, ContextTimeoutEnabled: true, ReadOnly: true}),
		"latency":   goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{addr}, ContextTimeoutEnabled: true, RouteByLatency: true}),
		"randomly":  goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{addr}, ContextTimeoutEnabled: true, RouteRandomly: true}),
		"deadlines": goredis.NewClient(&goredis.Options{Addr: addr}),
		"ring":      goredis.NewRing(&goredis.RingOptions{Addrs: map[string]string{"a": addr}, ContextTimeoutEnabled: true}),
		"nil":       nil,
	} {
		if _, err := New(t.Context(), client, quiet()); err == nil || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("New(%s) = %v, want a refusal", name, err)
		}
		if client != nil {
			_ = client.Close()
		}
	}
}

func TestUnreachableServerFailsAtOnce(t *testing.T) {
	m := startMini(t)
	client := connectDogged(t, "redis://"+m.Addr())
	s := open(t, client)
	m.Close()
	ctx := t.Context()
	start := time.Now()
	if _, err := New(ctx, client, quiet()); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("New() = %v, want %v", err, driver.ErrUnavailable)
	}
	for name, call := range calls {
		if err := call(ctx, s); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s() = %v, want %v", name, err, driver.ErrUnavailable)
		}
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the calls to a server that is away took %v", took)
	}
}

// A server that accepts and does not answer must not be waited for beyond the
// caller's deadline.
func TestDeadlineIsHonoured(t *testing.T) {
	r := testserver.StartRedis(t)
	s := open(t, connect(t, r.URL()))
	r.Pause()
	defer r.Resume()
	for _, name := range []string{"Begin", "Get", "Settle", "Ping"} {
		start := time.Now()
		err := calls[name](short(t), s)
		if took := time.Since(start); !errors.Is(err, driver.ErrUnavailable) || took > 10*time.Second { // the client would wait for 20 s
			t.Errorf("%s() with 100 ms = %v after %v, want %v", name, err, took, driver.ErrUnavailable)
		}
	}
}

func TestConnectForms(t *testing.T) {
	for addr, want := range map[string]string{
		"redis://h":                        "[h:6379]//0/false/",
		"redis://u:p%40@h:1/3":             "[h:1]/u:p@/3/false/",
		"redis://h:1,redis://i:2":          "[h:1 i:2]//0/true/",
		"redis://h:1 , redis://i:2/0":      "[h:1 i:2]//0/true/",
		"redis://:p@h:1,redis://i:2":       "[h:1 i:2]/:p/0/true/",
		"redis://u:p@h:1,redis://i:2":      "[h:1 i:2]/u:p/0/true/",
		"redis://[::1]:7":                  "[[::1]:7]//0/false/",
		"redis+sentinel://a:1,b/m":         "[a:1 b:26379]//0/false/m",
		"redis+sentinel://u:p@a:1,b:2/m/4": "[a:1 b:2]/u:p/4/false/m",
		"rediss://h:1":                     "[h:1]//0/false/+tls",
	} {
		o, err := parseAddr(addr)
		if err != nil {
			t.Errorf("parseAddr(%q) = %v, want <nil>", addr, err)
			continue
		}
		if got := describeOptions(o); got != want {
			t.Errorf("parseAddr(%q) = %s, want %s", addr, got, want)
		}
		if !o.ContextTimeoutEnabled || o.ReadOnly {
			t.Errorf("parseAddr(%q) = deadlines %v, read-only %v", addr, o.ContextTimeoutEnabled, o.ReadOnly)
		}
	}
	client, err := Connect("rediss://h:1", nil, WithTLS(nil))
	if err != nil {
		t.Fatalf("Connect() with options that are nil = %v, want <nil>", err)
	}
	_ = client.Close()
	for _, addr := range []string{
		"", "h:1", "http://h", "redis://", "redis://h/x", "redis://h,rediss://i", "redis://h/1,redis://i",
		"redis+sentinel://a:1", "redis+sentinel:///m", "redis://h?db=1", "redis://h#x", "redis://u:secret@h:port",
		"redis://h,", "redis://h,,redis://i", "redis://h,i", "redis://h:0", "redis://h:99999", "redis://h:", "redis://::1:6379", "redis://h/0,redis://i/1",
		"redis://u:secret@h:99999", "redis://:secret@h,redis://:other-secret@i", "redis://u:secret@h,redis://v:secret@i", "redis://h,redis+sentinel://i/m",
		"redis+sentinel://a,/m", "redis+sentinel://a,,b/m", "redis+sentinel://a:0/m", "redis+sentinel://a/m,b/m", "redis+sentinel://a:1/m,b:2", "redis+sentinel://a/m/1/2",
	} {
		if _, err := Connect(addr); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Connect(%q) = %v, want a refusal that tells no password", addr, err)
		}
	}
}
