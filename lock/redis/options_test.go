package redislock

import (
	"errors"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	addr := sharedAddr(t)
	good := connect(t, 2, addr)
	evicting := testserver.StartRedis(t, testserver.WithRedisArgs("--maxmemory-policy", "volatile-ttl"))
	writable := testserver.StartRedis(t, testserver.WithRedisArgs("--replica-read-only", "no"))
	for name, tt := range map[string]struct {
		client goredis.UniversalClient
		opt    Option
		want   string
	}{
		"a short time to live":  {good, WithTTL(999 * time.Millisecond), "too short"},
		"no time to live":       {good, WithTTL(0), "too short"},
		"an empty prefix":       {good, WithPrefix(""), "prefix"},
		"a prefix with braces":  {good, WithPrefix("a{b}"), "prefix"},
		"no client":             {nil, nil, "nil"},
		"a ring":                {goredis.NewRing(&goredis.RingOptions{}), nil, "*redis.Ring"},
		"reads from replicas":   {goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{addr}, ReadOnly: true}), nil, "replicas"},
		"a client without ends": {goredis.NewClient(&goredis.Options{Addr: addr}), nil, "ContextTimeoutEnabled"},
		"a server that evicts":  {connect(t, 2, evicting.Addr()), nil, "noeviction"},
		"a writable replica":    {connect(t, 2, writable.Addr()), nil, "replica-read-only"},
	} {
		l, err := New(t.Context(), tt.client, tt.opt, quiet())
		if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("New() with %s = %v, %v, want an error with %q, and not %v", name, l, err, tt.want, driver.ErrUnavailable)
		}
		if tt.client != nil {
			t.Cleanup(func() { _ = tt.client.Close() })
		}
	}
	if _, err := New(t.Context(), connect(t, 1, "127.0.0.1:1"), quiet()); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("New() without a server = %v, want %v", err, driver.ErrUnavailable)
	}
}

// A server that answers and refuses to write cannot take a lock.
func TestPingNoticesAServerThatRefusesWrites(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	l := open(t, connect(t, 2, r.Addr()))
	if err := l.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v, want <nil>", err)
	}
	do(t, r, "CONFIG", "SET", "min-replicas-to-write", "1")
	if err := l.Ping(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Ping() of a server without its replica = %v, want %v", err, driver.ErrUnavailable)
	}
	if lease, err := l.TryAcquire(t.Context(), request()); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("TryAcquire() = %v, %v, want %v", lease, err, driver.ErrUnavailable)
	}
}

func TestLockersWithOtherPrefixesDoNotMeet(t *testing.T) {
	t.Parallel()
	client, req := connect(t, 2, sharedAddr(t)), request()
	a, b := take(t, open(t, client, freshPrefix(t)), req), take(t, open(t, client, freshPrefix(t)), again(req))
	if a.Fence().Domain == b.Fence().Domain {
		t.Errorf("Fence() = %s and %s, want two domains", a.Fence(), b.Fence())
	}
}
