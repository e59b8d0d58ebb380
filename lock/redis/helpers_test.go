package redislock

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) {
	testserver.ParallelTests(4) // most of them wait for a server
	goleak.VerifyTestMain(testserver.M{M: m})
}

// patience bounds everything that tests wait for.
const patience = 30 * time.Second

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

// request is that of a new attempt on a key never used before.
func request() driver.LockRequest {
	n := driver.NewNonce()
	return driver.LockRequest{KeyID: idem.NewKeyID("test", idem.Key(n.String())), Nonce: n}
}

// again is another attempt's on the same key.
func again(req driver.LockRequest) driver.LockRequest {
	return driver.LockRequest{KeyID: req.KeyID, Nonce: driver.NewNonce()}
}

func take(tb testing.TB, l driver.Locker, req driver.LockRequest) driver.Lease {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	lease, err := l.TryAcquire(ctx, req)
	if err != nil {
		tb.Fatalf("TryAcquire(%s) = %v, want a lease", req.KeyID, err)
	}
	return lease
}

func takeSoon(tb testing.TB, l driver.Locker, req driver.LockRequest) driver.Lease {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	lease, err := driver.Acquire(ctx, l, req)
	if err != nil {
		tb.Fatalf("Acquire(%s) = %v, want a lease", req.KeyID, err)
	}
	return lease
}

func release(tb testing.TB, lease driver.Lease) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		tb.Errorf("Release() of %s = %v, want <nil>", lease.Fence(), err)
	}
}

// wantLocked tries a lock that somebody else has to hold.
func wantLocked(tb testing.TB, l driver.Locker, req driver.LockRequest) {
	tb.Helper()
	if lease, err := l.TryAcquire(tb.Context(), req); !errors.Is(err, driver.ErrLocked) {
		tb.Errorf("TryAcquire(%s) = %v, %v, want %v", req.KeyID, lease, err, driver.ErrLocked)
	}
}

func await(tb testing.TB, what string, c <-chan struct{}) {
	tb.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		tb.Fatalf("%s: nothing after %v", what, patience)
	}
}

func wantLost(tb testing.TB, lease driver.Lease) {
	tb.Helper()
	await(tb, "Done() of a lost lease", lease.Done())
	if err := lease.Err(); !errors.Is(err, driver.ErrLeaseLost) {
		tb.Errorf("Err() = %v, want %v", err, driver.ErrLeaseLost)
	}
	if left, err := lease.Check(tb.Context()); !errors.Is(err, driver.ErrLeaseLost) {
		tb.Errorf("Check() = %v, %v, want %v", left, err, driver.ErrLeaseLost)
	}
}

// do looks behind the locker's back.
func do(tb testing.TB, r *testserver.Redis, args ...string) []string {
	tb.Helper()
	got, err := r.Do(args...)
	if err != nil {
		tb.Fatalf("%v = %v, want <nil>", args, err)
	}
	return got
}
