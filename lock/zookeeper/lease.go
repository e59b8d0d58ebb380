package zookeeper

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
)

// Lease is the lock of a key, held through a session. It is safe for concurrent use.
//
// The token of its Fence is the czxid of the lock's znode as it was when the lock was
// taken. [Lease.MarkBegun] makes the znode anew.
type Lease struct {
	held   *held.Lease
	marker *marker
}

var _ driver.Lease = (*Lease)(nil)

// Fence implements [driver.Lease].
func (l *Lease) Fence() driver.Fence { return l.held.Fence() }

// Done implements [driver.Lease].
func (l *Lease) Done() <-chan struct{} { return l.held.Done() }

// Err implements [driver.Lease]. It reads the lease clock, so it tells of a loss even when Done is
// late, after the machine was suspended.
func (l *Lease) Err() error { return l.held.Err() }

// Check implements [driver.Lease]. It always reads the znode, so it notices one that was deleted by
// hand. While the connection is down it waits for another one, until ctx ends or the lease is over.
func (l *Lease) Check(ctx context.Context) (time.Duration, error) { return l.held.Check(ctx) }

// Release implements [driver.Lease]. The error wraps driver.ErrUnavailable if ctx ended first, or if the
// znode stays until the session is over.
func (l *Lease) Release(ctx context.Context) error { return l.held.Release(ctx) }

// ReleaseInBackground implements [driver.Lease]. [Client.Close] waits for it.
func (l *Lease) ReleaseInBackground() { l.held.ReleaseInBackground() }
