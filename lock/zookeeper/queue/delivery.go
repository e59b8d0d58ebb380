package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/once"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Delivery is an element with a lock for one consumer. It stays in the queue until its Ack. Done
// tells of the loss of the lock, and Release gives the element back without consuming it. A Delivery is
// an [driver.Lease], and safe for concurrent use.
type Delivery struct {
	Element

	// Attempt is 1 at the first delivery of the element, and one more each time. If it is
	// high, the element may make every consumer crash. Attempt may count a delivery whose
	// consumer gave up or crashed at that moment.
	Attempt int

	held    *held.Lease
	in      *elements
	at      line.Position
	version int32 // of the element's data, since it was locked for this delivery

	acking chan struct{} // full while an Ack is under way, and guards acked
	acked  bool
}

var _ driver.Lease = (*Delivery)(nil)

// Fence implements [driver.Lease].
func (d *Delivery) Fence() driver.Fence { return d.held.Fence() }

// Done implements [driver.Lease].
func (d *Delivery) Done() <-chan struct{} { return d.held.Done() }

// Err implements [driver.Lease]. It reads the lease clock, so it tells of a loss even when Done is
// late, after the machine was suspended.
func (d *Delivery) Err() error { return d.held.Err() }

// Check implements [driver.Lease]. It always reads the znode, so it notices one that was deleted by
// hand. While the connection is down it waits for another one, until ctx ends or the lease is over.
func (d *Delivery) Check(ctx context.Context) (time.Duration, error) { return d.held.Check(ctx) }

// Release implements [driver.Lease]. The error wraps driver.ErrUnavailable if ctx ended first, or if the
// znode stays until the session is over.
func (d *Delivery) Release(ctx context.Context) error { return d.held.Release(ctx) }

// ReleaseInBackground implements [driver.Lease]. [zookeeper.Client.Close] waits for it.
func (d *Delivery) ReleaseInBackground() { d.held.ReleaseInBackground() }

// errTaken means that another process has taken or locked the element.
var errTaken = errors.New("zookeeper: element was taken")

// Receive locks the oldest element without a lock, and waits for one. The errors are those of
// Take, but never an [*InDoubtError]. If Receive fails, it removes any lock in the background.
func (q *Queue) Receive(ctx context.Context) (*Delivery, error) { return q.receive(ctx, true) }

// TryReceive is Receive, except that it returns ErrEmpty instead of waiting.
func (q *Queue) TryReceive(ctx context.Context) (*Delivery, error) { return q.receive(ctx, false) }

func (q *Queue) receive(ctx context.Context, wait bool) (d *Delivery, err error) {
	owner := q.c.Owned(q.name).Encode()
	err = serve(ctx, q, wait, func(e *elements, p line.Position) (done bool, err error) {
		n, ok, err := e.inspect(ctx, p)
		if !ok {
			return false, err
		}
		cl, other, err := e.t.Claim(lockOf(e.pathOf(p)))
		switch {
		case other != nil: // another Queue of this session has it
			e.free(p, other.Freed())
			return false, nil
		case err != nil:
			e.free(p, nil)
			return false, err
		}
		d = &Delivery{
			Element: Element{ID: p.Unique(), Data: n.Data}, Attempt: int(n.Version) + 1,
			in: e, at: p, version: n.Version + 1, acking: make(chan struct{}, 1),
		}
		d.held, err = cl.Acquire(ctx, held.Znode{
			Shared: true,
			Make: func(a *held.Attempt) (string, int64, error) {
				czxid, err := d.lock(a, owner)
				return cl.Path(), czxid, err
			},
		})
		e.free(p, cl.Freed())
		if errors.Is(err, errTaken) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// lockOf is the path of the ephemeral znode on an element, its lock.
func lockOf(path string) string { return path + "/lock" }

func (d *Delivery) path() string { return d.in.pathOf(d.at) }

// lock makes the lock's znode. The same transaction writes the element's data again, and so
// increments the version. Of all deliveries of an element only the latest knows its version.
func (d *Delivery) lock(a *held.Attempt, owner []byte) (czxid int64, err error) {
	var r session.Result
	for range held.MaxTries {
		if a.Abandoned() {
			return 0, held.ErrAbandoned
		}
		r = a.Table.Session.Writes.Do(
			a.Table.Client.Ephemeral(lockOf(d.path()), owner),
			&zk.SetDataRequest{Path: d.path(), Data: d.Data, Version: d.version - 1})
		switch {
		case r.Outcome == session.Applied:
			return r.Zxid, nil
		case r.RefusedBy(zk.ErrNoNode), r.RefusedAt(0, zk.ErrNodeExists), r.RefusedAt(1, zk.ErrBadVersion):
			return 0, errTaken
		case r.Outcome != session.Unknown:
			return 0, fmt.Errorf("%w: receive: %w", driver.ErrUnavailable, r.Err)
		}
		n, err := a.Table.Session.Reads.Decide(lockOf(d.path()), session.OfNode)
		if err != nil {
			return 0, fmt.Errorf("%w: receive: %w", driver.ErrUnavailable, err)
		}
		if n.Exists && n.Session == a.Table.Session.Status.ID() && bytes.Equal(n.Data, owner) {
			return n.Czxid, nil
		}
	}
	return 0, fmt.Errorf("%w: receive: no certain answer %d times, the last: %w", driver.ErrUnavailable, held.MaxTries, r.Err)
}

// Ack removes the element. It returns nil if this delivery has removed it, now or in an earlier
// call.
//
//   - The error wraps driver.ErrLeaseLost if the lock had been lost. This call did not remove the
//     element. Another consumer gets it, or has got it.
//   - It is an [*InDoubtError] and also wraps driver.ErrLeaseLost if the session ended under way.
//     The element may have been removed. Otherwise it will be delivered again.
//   - It wraps driver.ErrUnavailable if ctx ended. Ack goes on in the background, and another
//     call tells its outcome.
//   - It also wraps driver.ErrUnavailable if the servers refused. The element is still locked.
//
// Ack never removes another consumer's delivery. Every lock comes with a new version of the
// element, and Ack deletes only the version of its own delivery.
func (d *Delivery) Ack(ctx context.Context) error {
	select {
	case d.acking <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: another ack is under way: %w", driver.ErrUnavailable, context.Cause(ctx))
	}
	if over := d.held.Over(); over != nil {
		defer func() { <-d.acking }()
		if d.acked {
			return nil
		}
		return over
	}
	outcome := make(chan error, 1)
	settled := func(r session.Result) {
		outcome <- d.settle(r)
		<-d.acking
	}
	// The lock is the element's child, so it is deleted first.
	once.Begin(context.WithoutCancel(ctx), d.held.Table(), settled,
		&zk.DeleteRequest{Path: lockOf(d.path()), Version: -1},
		&zk.DeleteRequest{Path: d.path(), Version: d.version})
	select {
	case err := <-outcome:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: ack goes on in the background: %w", driver.ErrUnavailable, context.Cause(ctx))
	}
}

// settle ends an Ack. Its outcome is known, or the session is over.
func (d *Delivery) settle(r session.Result) error {
	switch {
	case r.Outcome == session.Applied:
		d.acked = true
		d.in.drop(d.at)
		if removed := d.held.Take(); removed != nil { // otherwise a Release is about to find the znode gone
			removed(nil)
		}
		return nil
	case r.Outcome == session.Unknown:
		err := fmt.Errorf("%w: ack: %w", driver.ErrLeaseLost, r.Err)
		return &InDoubtError{Op: "ack", Elements: []Element{d.Element}, Err: err}
	case r.RefusedBy(zk.ErrNoNode), r.RefusedAt(1, zk.ErrBadVersion):
		return d.held.Lose()
	}
	if over := d.held.Over(); over != nil {
		return over
	}
	return fmt.Errorf("%w: ack: %w", driver.ErrUnavailable, r.Err)
}
