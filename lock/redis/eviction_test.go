package redislock

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestEvictionAfterTheStartIsNoticed(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	l := open(t, connect(t, 2, r.Addr()), func(c *config) { c.evictionEvery = time.Millisecond })
	// take tries until a lock is taken, or refused for the policy, as is wanted.
	take := func(want string) {
		t.Helper()
		for start := time.Now(); ; runtime.Gosched() {
			le, err := l.TryAcquire(t.Context(), driver.LockRequest{KeyID: idem.NewKeyID("m", idem.Key(driver.NewNonce().String())), Nonce: driver.NewNonce()})
			if err == nil {
				le.ReleaseInBackground()
			}
			if want == "" && err == nil || want != "" && errors.Is(err, driver.ErrUnavailable) && strings.Contains(err.Error(), want) {
				return
			}
			if time.Since(start) > 20*time.Second {
				t.Fatalf("TryAcquire() = %v, want an error with %q", err, want)
			}
		}
	}
	take("")
	do(t, r, "CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
	take("volatile-ttl")
	if err := l.Ping(t.Context()); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "volatile-ttl") {
		t.Errorf("Ping() = %v, want %v that names the policy", err, driver.ErrUnavailable)
	}
	do(t, r, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	take("")
}
