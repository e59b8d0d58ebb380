package sealed

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

func fatal(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// lockedInRedis is a locker and a store in one Redis.
func lockedInRedis(tb testing.TB) (*redislock.Locker, *redisstore.Store) {
	tb.Helper()
	client, err := redisstore.Connect(testserver.SharedRedis(tb))
	fatal(tb, err)
	prefix, log := strings.TrimSuffix(testserver.KeyPrefix(tb), ":"), slog.New(slog.DiscardHandler)
	store, err := redisstore.New(tb.Context(), client, redisstore.WithPrefix(prefix), redisstore.WithLogger(log))
	fatal(tb, err)
	locker, err := redislock.New(tb.Context(), client, redislock.WithPrefix(prefix), redislock.WithLogger(log))
	fatal(tb, err)
	tb.Cleanup(func() {
		_ = locker.Close(context.Background())
		_ = client.Close()
	})
	return locker, store
}

func TestLockingStoreOverRedis(t *testing.T) {
	ring := ringOf(t, "k2", "k1")
	idemtest.RunLockingStore(t, func(tb testing.TB) (driver.OfferingLocker, driver.LockingStore) {
		locker, store := lockedInRedis(tb)
		return locker, over(tb, store, ring)
	})
}

// A repeat whose response cannot be opened is told so. Nothing has begun, so there is nothing to undo, and the lock
// of other keys can be had at once.
func TestCombinedCallsWithoutTheKey(t *testing.T) {
	locker, store := lockedInRedis(t)
	do := func(key string, ring *Ring) (idem.Result, error) {
		t.Helper()
		faulty := idemtest.NewFaultyStore(over(t, store, ring))
		engine, err := idem.New(locker, faulty)
		fatal(t, err)
		policy, err := idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}.WithDefaults()
		fatal(t, err)
		_, err = engine.Status(t.Context(), "m", "none", &policy) // the store learns the time
		fatal(t, err)
		res, err := engine.Do(t.Context(), idem.Operation{Scope: "m", Key: idem.Key(key), Policy: &policy, Fingerprint: idem.FingerprintOf("pay")},
			func(context.Context) (idem.Response, error) { return idem.Response(*payment()), nil })
		if closed := engine.Close(t.Context()); closed != nil { // it waits for an undo
			t.Errorf("Close() = %v", closed)
		}
		if faulty.Calls("BeginLocked") != 1 || faulty.Calls("Abort") != 0 {
			t.Errorf("BeginLocked and Abort were called %d and %d times, want 1 and 0", faulty.Calls("BeginLocked"), faulty.Calls("Abort"))
		}
		return res, err
	}
	if res, err := do("k", ringOf(t, "k2", "k1")); err != nil || res.Replayed {
		t.Fatalf("Do() = %+v, %v, want it done", res, err)
	}
	if _, err := do("k", ringOf(t, "k1")); code(err) != idem.CodeUnavailable || !errors.Is(err, ErrUnreadable) {
		t.Errorf("Do() without the key = %v, want it unavailable, and why", err)
	}
	if res, err := do("another", ringOf(t, "k1")); err != nil || res.Replayed {
		t.Errorf("Do() of another key = %+v, %v, want it done", res, err)
	}
	if res, err := do("k", ringOf(t, "k1", "k2")); err != nil || !res.Replayed || string(res.Response.Body) != string(payment().Body) {
		t.Errorf("Do() with the key again = %+v, %v, want the replay", res, err)
	}
}
