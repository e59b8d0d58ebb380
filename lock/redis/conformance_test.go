package redislock

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestConformance(t *testing.T) { conforms(t, sharedAddr(t)) }

func TestConformanceInACluster(t *testing.T) {
	conforms(t, testserver.StartRedisCluster(t, 3).Addrs()...)
}

func conforms(t *testing.T, addrs ...string) {
	t.Helper()
	prefix := testserver.KeyPrefix(t)
	start := func(t *testing.T) driver.Locker {
		return open(t, connect(t, 2, addrs...), WithPrefix(prefix))
	}
	raw := connect(t, 2, addrs...)
	idemtest.RunLocker(t, idemtest.LockerHarness{
		New:    start,
		Second: func(t *testing.T, _ driver.Locker) driver.Locker { return start(t) },
		Lose: func(t *testing.T, l driver.Locker, id driver.KeyID, lease driver.Lease) {
			if n, err := raw.Del(t.Context(), l.(*Locker).keeper.keys.Lock(id)).Result(); n != 1 || err != nil {
				t.Fatalf("DEL of the lock = %d, %v, want 1", n, err)
			}
			_, _ = lease.Check(t.Context()) // notices; TestFlush has the heartbeat do it
		},
	})
}
