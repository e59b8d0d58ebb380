package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/once"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Delivery is an element that is locked for one consumer, and stays in the queue
// until it is acknowledged. Its Lease is the lock: Done tells when that is lost,
// Release gives the element back without consuming it. It is safe for concurrent
// use.
type Delivery struct {
	*held.Lease
	Element

	// Attempt is 1 at the first delivery of the element, and one more each time:
	// what makes every consumer crash shows by it. It may count a delivery that
	// reached nobody, because its consumer gave up or crashed at that moment.
	Attempt int

	list    *listing
	index   int
	path    string // of the element
	version int32  // of its data, since it was locked for this delivery

	mu  sync.Mutex
	ack *acknowledgement
}

// acknowledgement is an Ack under way, or one that has succeeded.
type acknowledgement struct {
	done chan struct{} // closed when err is set
	err  error
}

var (
	errElementGone   = errors.New("zookeeper: element is gone")
	errElementLocked = errors.New("zookeeper: element is locked")
)

// Receive locks the oldest element that is not locked, and waits for one. The
// errors are those of Take, except that none of them is in doubt: a lock that
// the caller does not get is removed in the background.
func (q *Queue) Receive(ctx context.Context) (*Delivery, error) { return q.receive(ctx, true) }

// TryReceive is Receive, except that it returns ErrEmpty where it would
// wait.
func (q *Queue) TryReceive(ctx context.Context) (*Delivery, error) { return q.receive(ctx, false) }

func (q *Queue) receive(ctx context.Context, wait bool) (d *Delivery, err error) {
	err = q.serve(ctx, wait, func(ctx context.Context, l *listing, i int, cl *held.Claim) (v verdict, err error) {
		d, v, err = q.lock(ctx, l, i, cl)
		return v, err
	})
	return d, err
}

// lock locks an element.
func (q *Queue) lock(ctx context.Context, l *listing, i int, cl *held.Claim) (*Delivery, verdict, error) {
	n, v, err := q.inspect(ctx, l, i, cl)
	if v != had {
		return nil, v, err
	}
	d := &Delivery{
		Element: Element{ID: l.line[i].Unique(), Data: n.Data}, Attempt: int(n.Version) + 1,
		list: l, index: i, path: q.pathOf(l.line[i]), version: n.Version + 1,
	}
	owner := q.c.Owned(q.name).Encode()
	d.Lease, err = cl.Acquire(ctx, held.Znode{
		Shared: true,
		Make: func(a *held.Attempt) (string, int64, error) {
			czxid, err := d.lock(a, owner)
			return lockOf(d.path), czxid, err
		},
	})
	switch {
	case errors.Is(err, errElementGone):
		l.drop(i)
		return nil, gone, nil
	case errors.Is(err, errElementLocked):
		watchElement(l.t, d.path)
		return nil, locked, nil
	case err != nil:
		return nil, failed, err
	}
	return d, had, nil
}

// lock makes the lock's znode, until it is known what became of it. In the same
// transaction it writes the element anew, which leaves its data as it was and
// increments its version: of all deliveries of an element, only the latest knows
// the version that there is.
func (d *Delivery) lock(a *held.Attempt, owner []byte) (czxid int64, err error) {
	var r session.Result
	for range held.MaxTries {
		if a.Abandoned() {
			return 0, held.ErrAbandoned
		}
		r = a.Write(
			a.Ephemeral(lockOf(d.path), owner),
			&zk.SetDataRequest{Path: d.path, Data: d.Data, Version: d.version - 1})
		switch {
		case r.Outcome == session.Applied:
			return r.Zxid, nil
		case r.RefusedAt(0, zk.ErrNoNode), r.RefusedAt(1, zk.ErrNoNode):
			return 0, errElementGone
		case r.RefusedAt(0, zk.ErrNodeExists), r.RefusedAt(1, zk.ErrBadVersion):
			return 0, errElementLocked // or was, since it was read
		case r.Outcome != session.Unknown:
			return 0, fmt.Errorf("%w: receive: %w", idem.ErrUnavailable, r.Err)
		}
		n, err := a.Decide(lockOf(d.path), session.OfNode)
		if err != nil {
			return 0, fmt.Errorf("%w: receive: %w", idem.ErrUnavailable, err)
		}
		if n.Exists && n.Session == a.ID() && bytes.Equal(n.Data, owner) {
			return n.Czxid, nil
		}
	}
	return 0, fmt.Errorf("%w: receive: no certain answer %d times, the last: %w", idem.ErrUnavailable, held.MaxTries, r.Err)
}

// Ack removes the element. It returns nil if this delivery has removed it, now or
// in an earlier call.
//
// The error wraps idem.ErrLeaseLost where the lock had been lost: the element is,
// or was, delivered to somebody else, and was not removed by this call. It is an
// [*InDoubtError], which also wraps that, where the session ended under way: the
// element may have been removed or will be delivered again. It wraps
// idem.ErrUnavailable where ctx ended, and then Ack goes on in the background, to
// be called again by who wants to know; or where the servers refused it, and
// then the element is still locked.
//
// Nobody else's delivery is ever removed. Paths name the lock and the element,
// whoever has them; but every lock is taken together with a new version of the
// element, and it is the version of this delivery that Ack deletes.
func (d *Delivery) Ack(ctx context.Context) error {
	a, err := d.acknowledge(ctx)
	if err != nil {
		return err
	}
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return fmt.Errorf("%w: ack goes on in the background: %w", idem.ErrUnavailable, context.Cause(ctx))
	}
}

// acknowledge starts an Ack unless one is under way or has succeeded.
func (d *Delivery) acknowledge(ctx context.Context) (*acknowledgement, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ack != nil {
		return d.ack, nil
	}
	if over := d.Over(); over != nil {
		return nil, over
	}
	a := &acknowledgement{done: make(chan struct{})}
	d.Table().Keeper.Background.Add()
	run := func() {
		defer d.Table().Keeper.Background.Done()
		a.err = d.remove(context.WithoutCancel(ctx))
		if a.err != nil {
			d.mu.Lock()
			d.ack = nil
			d.mu.Unlock()
		}
		close(a.done)
	}
	if !d.Table().Go(run) {
		d.Table().Keeper.Background.Done()
		return nil, fmt.Errorf("%w: %w", idem.ErrLeaseLost, d.Table().Err())
	}
	d.ack = a
	return a, nil
}

// remove deletes the lock, which has to go first, and the element.
func (d *Delivery) remove(ctx context.Context) error {
	r := once.Write(ctx, d.Table(), nil,
		&zk.DeleteRequest{Path: lockOf(d.path), Version: -1},
		&zk.DeleteRequest{Path: d.path, Version: d.version})
	switch {
	case r.Outcome == session.Applied:
		d.list.drop(d.index)
		if removed := d.Take(); removed != nil { // otherwise a Release is about to find it gone
			removed(nil)
		}
		return nil
	case r.Outcome == session.Unknown:
		err := fmt.Errorf("%w: ack: %w", idem.ErrLeaseLost, r.Err)
		return &InDoubtError{Op: "ack", Elements: []Element{d.Element}, Err: err}
	case r.RefusedAt(0, zk.ErrNoNode), r.RefusedAt(1, zk.ErrNoNode), r.RefusedAt(1, zk.ErrBadVersion):
		return d.Lose()
	}
	if over := d.Over(); over != nil {
		return over
	}
	return fmt.Errorf("%w: ack: %w", idem.ErrUnavailable, r.Err)
}
