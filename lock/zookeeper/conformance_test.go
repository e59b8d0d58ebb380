package zookeeper

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestConformance(t *testing.T) {
	conform(t, func(c *Client) driver.Locker { return c.Locker() }, func(l driver.Locker) *Client { return l.(*Locker).c })
}

// The same behaviour where every other lease leaves a marker, or removes it, so
// that locks change their place all the time.
func TestConformanceWithMarkers(t *testing.T) {
	conform(t,
		func(c *Client) driver.Locker { return &alternating{Locker: c.Locker(WithDurableMarkers())} },
		func(l driver.Locker) *Client { return l.(*alternating).c })
}

type alternating struct {
	*Locker
	n atomic.Uint32
}

func (l *alternating) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, req)
	if err != nil {
		return nil, err
	}
	if l.n.Add(1)%2 == 1 {
		lease.(*Lease).MarkOnRelease(newMarker(driver.StateCompleted))
	} else {
		lease.(*Lease).MarkOnRelease(nil)
	}
	return lease, nil
}

func conform(t *testing.T, locker func(*Client) driver.Locker, client func(driver.Locker) *Client) {
	t.Parallel()
	idemtest.RunLocker(t, idemtest.LockerHarness{
		New:    func(t *testing.T) driver.Locker { return locker(open(t, sharedConfig(t))) },
		Second: func(t *testing.T, first driver.Locker) driver.Locker { return locker(open(t, client(first).cfg)) },
		Lose: func(t *testing.T, l driver.Locker, id driver.KeyID, lease driver.Lease) {
			raw := rawConn(t, testserver.SharedZooKeeper(t))
			if err := raw.Delete(sessionOf(client(l)).session.Member(), -1); err != nil {
				t.Fatalf("delete member: %v", err)
			}
		},
	})
}
