package zookeeper

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

func TestConformance(t *testing.T) {
	idemtest.RunLocker(t, idemtest.LockerHarness{
		New: func(t *testing.T) idem.Locker { return open(t, sharedConfig(t)).Locker() },
		Second: func(t *testing.T, first idem.Locker) idem.Locker {
			cfg := first.(*Locker).c.cfg
			return open(t, cfg).Locker()
		},
		Lose: func(t *testing.T, l idem.Locker, id idem.KeyID, lease idem.Lease) {
			c := l.(*Locker).c
			raw := rawConn(t, testserver.SharedZooKeeper(t))
			s := sessionOf(c)
			if err := raw.Delete(s.w.pin.Path, -1); err != nil {
				t.Fatalf("delete member: %v", err)
			}
		},
	})
}
