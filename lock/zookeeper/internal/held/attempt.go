package held

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// MaxTries bounds how often one attempt sends its create: after a missing parent, an
// orphan, a holder that left, a lost reply.
const MaxTries = 8

// ErrAbandoned ends an attempt whose caller has gone.
var ErrAbandoned = fmt.Errorf("%w: the attempt was abandoned", idem.ErrUnavailable)

func refusedNoNode(err error) bool { return errors.Is(err, zk.ErrNoNode) }

// Znode says how a znode is made and removed.
type Znode struct {
	// Make makes the znode, and returns its path and czxid. It goes on until the outcome
	// of its writes is known. With an error it has left no znode.
	Make func(a *Attempt) (path string, czxid int64, err error)

	// First is the write that Make begins with. It is sent without a goroutine. It is
	// nil if Make has to wait before its first write.
	First *session.Request

	// Shared says that other owners may make a znode at the same path. Then the znode
	// is read before it is deleted, unless it is young.
	Shared bool

	// Delete returns the operations of the transaction that deletes the znode. The
	// first one deletes it. It is called once with nil, and then after each refusal
	// with the result. It then returns other operations to try at once, or nil to try
	// the same ones again later. The Table's lock may be held, so Delete must not use
	// the Table. If Delete is nil the znode is deleted alone.
	Delete func(l *Lease, refused *session.Result) []any

	// Vanished, if not nil, is called when the znode was gone before its deletion.
	Vanished func()

	// Tag is for the package that makes the znode. [Lease.Tag] returns it.
	Tag any

	// Fence is the fence of the lease. If it is zero, the fence is the znode's czxid.
	Fence idem.Fence
}

// Attempt is the making of one znode that a lease is to stand for. It goes on when its
// caller has gone, and then undoes what it made. If its first write settles it, which is
// nearly always, it takes no goroutine.
type Attempt struct {
	*Table

	claim *Claim
	znode Znode
	early *session.Result // of Znode.First, until Make has taken it
	began leaseclock.Instant
	done  chan struct{} // closed when lease and err are set

	abandoned bool // guarded by Table.mu, like the next two
	lease     *Lease
	err       error
}

// Acquire makes a znode at a claimed path. It returns when the attempt is over, ctx has
// ended, or the session can no longer be trusted. If it fails, the claim is or will be
// given up. The error wraps idem.ErrUnavailable, or it is that of Make.
func (cl *Claim) Acquire(ctx context.Context, z Znode) (*Lease, error) {
	t := cl.t
	a := &Attempt{Table: t, claim: cl, znode: z, began: t.Now(), done: make(chan struct{})}
	t.Keeper.Background.Add()
	if !a.start() {
		t.Keeper.Background.Done()
		cl.Free()
		return nil, fmt.Errorf("%w: %w", idem.ErrUnavailable, t.Err())
	}
	if err := t.Await(ctx, a.done); err != nil {
		return a.leave(err)
	}
	return a.lease, a.err
}

// start sets the attempt going, unless the session is over.
func (a *Attempt) start() bool {
	if a.znode.First == nil {
		return a.Go(a.run)
	}
	return a.Ask(*a.znode.First, func(r session.Result) {
		a.early = &r
		switch r.Outcome {
		case session.Applied, session.Unsent, session.Ended:
			a.run() // there is nothing to wait for
		default:
			a.Further(a.run)
		}
	})
}

// leave abandons the attempt. If it is over already, its result counts.
func (a *Attempt) leave(why error) (*Lease, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
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
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.abandoned && a.early == nil
}

// Send makes a pinned write. The first time it returns the answer to Znode.First.
func (a *Attempt) Send(req session.Request) session.Result {
	if r := a.early; r != nil {
		a.early = nil
		return *r
	}
	return a.Do(req)
}

// run makes the znode and hands it to the caller.
func (a *Attempt) run() {
	path, czxid, err := a.znode.Make(a)
	switch {
	case err != nil:
		a.fail(err)
	case a.grant(path, czxid):
		a.Keeper.Background.Done()
	default: // the caller has gone, or the znode came too late to be trusted
		a.mu.Lock()
		a.claim.phase = releasing
		a.mu.Unlock()
		a.Further(func() { a.undo(path, czxid) })
	}
}

func (a *Attempt) undo(path string, czxid int64) {
	if gone := a.Remove(path, czxid, a.znode.Shared && a.Now().Sub(a.began) > young); gone != nil {
		a.Log.Warn("zookeeper: abandoned lock left to the end of its session", "path", path, "error", gone)
	}
	a.fail(fmt.Errorf("%w: the lock came too late", idem.ErrUnavailable))
}

// fail ends an attempt that has left no znode.
func (a *Attempt) fail(err error) {
	defer a.Keeper.Background.Done()
	a.claim.Free()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
	close(a.done)
}

// grant hands the znode to the caller, if that still waits and the session can be trusted.
func (a *Attempt) grant(path string, czxid int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.abandoned {
		return false
	}
	l := &Lease{
		t: a.Table, claim: a.claim, znode: a.znode, path: path, czxid: czxid, taken: a.began,
		fence: a.znode.Fence,
		done:  make(chan struct{}), gone: make(chan struct{}),
	}
	if l.fence.Domain == "" {
		l.fence = a.Fence(czxid)
	}
	if l.hold = a.Hold(l.lost, l.overdue); l.hold == nil {
		return false
	}
	a.claim.phase, a.claim.lease = holding, l
	a.lease = l
	close(a.done)
	return true
}
