package zookeeper

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

func TestConformance(t *testing.T) {
	conform(t, func(c *Client) idem.Locker { return c.Locker() }, func(l idem.Locker) *Client { return l.(*Locker).c })
}

// The same behaviour where every other lease leaves a marker, or removes it, so
// that locks change their place all the time.
func TestConformanceWithMarkers(t *testing.T) {
	conform(t,
		func(c *Client) idem.Locker { return &alternating{Locker: c.Locker(WithDurableMarkers())} },
		func(l idem.Locker) *Client { return l.(*alternating).c })
}

type alternating struct {
	*Locker
	n atomic.Uint32
}

func (l *alternating) TryAcquire(ctx context.Context, req idem.LockRequest) (idem.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, req)
	if err != nil {
		return nil, err
	}
	if l.n.Add(1)%2 == 1 {
		lease.(*Lease).MarkOnRelease(newMarker(idem.StateCompleted))
	} else {
		lease.(*Lease).MarkOnRelease(nil)
	}
	return lease, nil
}

func conform(t *testing.T, locker func(*Client) idem.Locker, client func(idem.Locker) *Client) {
	idemtest.RunLocker(t, idemtest.LockerHarness{
		New:    func(t *testing.T) idem.Locker { return locker(open(t, sharedConfig(t))) },
		Second: func(t *testing.T, first idem.Locker) idem.Locker { return locker(open(t, client(first).cfg)) },
		Lose: func(t *testing.T, l idem.Locker, id idem.KeyID, lease idem.Lease) {
			raw := rawConn(t, testserver.SharedZooKeeper(t))
			if err := raw.Delete(sessionOf(client(l)).Member(), -1); err != nil {
				t.Fatalf("delete member: %v", err)
			}
		},
	})
}
