package redislock

import (
	"context"
	"log/slog"
	"net/url"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/test/locktest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) {
	testserver.ParallelTests(4) // most of them wait for a server
	goleak.VerifyTestMain(testserver.M{M: m})
}

const patience = locktest.Patience

var (
	request    = locktest.Request
	again      = locktest.Again
	take       = locktest.Take
	takeSoon   = locktest.TakeSoon
	release    = locktest.Release
	wantLocked = locktest.WantLocked
	await      = locktest.Await
	wantLost   = locktest.WantLost
)

// connect returns a client as a service would make it, closed when the test
// ends; a cluster's for several addresses. tries counts the sendings of a
// command.
func connect(tb testing.TB, tries int, addrs ...string) goredis.UniversalClient {
	tb.Helper()
	return newClient(tb, options(tries, addrs...))
}

func newClient(tb testing.TB, o *goredis.UniversalOptions) goredis.UniversalClient {
	tb.Helper()
	client := goredis.NewUniversalClient(o)
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func options(tries int, addrs ...string) *goredis.UniversalOptions {
	o := &goredis.UniversalOptions{
		Addrs: addrs, IsClusterMode: len(addrs) > 1,
		ContextTimeoutEnabled: true, MaxRetries: tries - 1,
		MinRetryBackoff: time.Millisecond, MaxRetryBackoff: 5 * time.Millisecond,
		DialTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, PoolTimeout: 5 * time.Second,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if tries == 1 {
		o.MaxRetries = -1
	}
	return o
}

// open returns a locker on client, closed when the test ends.
func open(tb testing.TB, client goredis.UniversalClient, opts ...Option) *Locker {
	tb.Helper()
	l, err := New(tb.Context(), client, append([]Option{quiet()}, opts...)...)
	if err != nil {
		tb.Fatalf("New() = %v, want <nil>", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond) // the server may be gone
		defer cancel()
		_ = l.Close(ctx)
	})
	return l
}

// longTTL is too long for a heartbeat or the end of trust in a test.
const longTTL = 2 * time.Minute

func withClock(now leaseclock.Source) Option { return func(c *config) { c.now = now } }

func quiet() Option { return WithLogger(slog.New(slog.DiscardHandler)) }

// sharedAddr is the address of the shared server, whose keys are told apart by
// their prefix.
func sharedAddr(tb testing.TB) string {
	tb.Helper()
	u, err := url.Parse(testserver.SharedRedis(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return u.Host
}

func freshPrefix(tb testing.TB) Option { return WithPrefix(testserver.KeyPrefix(tb)) }

// do looks behind the locker's back.
func do(tb testing.TB, r *testserver.Redis, args ...string) []string {
	tb.Helper()
	got, err := r.Do(args...)
	if err != nil {
		tb.Fatalf("%v = %v, want <nil>", args, err)
	}
	return got
}
