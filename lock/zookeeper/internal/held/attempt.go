package held

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// ErrAbandoned ends an attempt after its caller has gone.
var ErrAbandoned = fmt.Errorf("%w: the attempt was abandoned", driver.ErrUnavailable)

// Attempt makes one znode for a lease. It goes on when its caller has gone, and then
// undoes its work.
type Attempt struct {
	Table *Table

	claim *Claim
	znode Znode
	began leaseclock.Instant
	done  chan struct{} // closed when lease and err are set

	abandoned bool // guarded by Table.mu, like the next two
	lease     *Lease
	err       error
}

// Acquire makes a znode at a claimed path. It returns when the attempt is over, ctx has
// ended, or the session can no longer be trusted. If it fails, the claim is or will be
// given up. The error wraps driver.ErrUnavailable, or it is the error of Make.
func (cl *Claim) Acquire(ctx context.Context, z Znode) (*Lease, error) {
	t := cl.t
	if z.Delete == nil {
		z.Delete = func(l *Lease, refused *session.Result) []any {
			path, _ := l.Where()
			return deletion(path, refused)
		}
	}
	if z.Vanished == nil {
		z.Vanished = func() {}
	}
	a := &Attempt{Table: t, claim: cl, znode: z, began: t.Client.Now(), done: make(chan struct{})}
	t.Client.Keeper.Background.Add()
	t.Further(a.run)
	if err := t.Session.Status.Await(ctx, a.done); err != nil {
		return a.leave(err)
	}
	return a.lease, a.err
}

// leave abandons the attempt. If it is over already, its result counts.
func (a *Attempt) leave(why error) (*Lease, error) {
	a.Table.mu.Lock()
	defer a.Table.mu.Unlock()
	select {
	case <-a.done:
		return a.lease, a.err
	default:
	}
	a.abandoned = true
	a.claim.phase = releasing
	return nil, fmt.Errorf("acquire: %w", why)
}

// Claim is the claim of the znode's path.
func (a *Attempt) Claim() *Claim { return a.claim }

// Abandoned reports whether the caller has gone. Make sends nothing more then.
func (a *Attempt) Abandoned() bool {
	a.Table.mu.Lock()
	defer a.Table.mu.Unlock()
	return a.abandoned
}

// run makes the znode and hands it to the caller. If the connection was suspended after the last
// answer, run waits for it first, because a suspended client gives out no lease. It undoes the
// znode if the caller has gone, or if the znode came too late to be trusted.
func (a *Attempt) run() {
	defer a.Table.Client.Keeper.Background.Done()
	path, czxid, err := a.znode.Make(a)
	if err == nil && a.Table.Session.Status.Settled() == nil && a.grant(path, czxid) {
		return
	}
	if err == nil {
		old := a.znode.Shared && a.Table.Client.Now().Sub(a.began) > Young
		if gone := a.Table.Remove(path, czxid, old); gone != nil {
			a.Table.Client.Log.Warn("zookeeper: abandoned lock left to the end of its session", "path", path, "error", gone)
		}
		err = fmt.Errorf("%w: the lock came too late", driver.ErrUnavailable)
	}
	a.claim.Free()
	a.Table.mu.Lock()
	defer a.Table.mu.Unlock()
	a.err = err
	close(a.done)
}

// grant hands the znode to the caller, unless the caller has gone or the session lost its
// trust.
func (a *Attempt) grant(path string, czxid int64) bool {
	a.Table.mu.Lock()
	defer a.Table.mu.Unlock()
	settled := make(chan struct{})
	close(settled) // the znode is not being moved
	l := &Lease{
		ending:   ending{done: make(chan struct{})},
		location: location{path: path, czxid: czxid, moving: settled},
		t:        a.Table, claim: a.claim, znode: a.znode, taken: a.began,
		fence: a.Table.Fence(czxid), gone: make(chan struct{}),
	}
	if a.znode.Fence != nil {
		l.fence = a.znode.Fence(czxid)
	}
	if !a.abandoned {
		l.hold = a.Table.Session.Trust.Hold(func(err error) { l.ending.end(err) }, l.ReleaseInBackground)
	}
	if l.hold == nil {
		a.claim.phase = releasing
		return false
	}
	a.claim.phase, a.claim.lease = holding, l
	a.lease = l
	close(a.done)
	return true
}
