package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/once"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// queueNames is the znode whose children are the names under which elements of a
// queue were offered. It is beside the queue, so that the queue's listings do
// not show it.
func queueNames(path string) string { return path + "-names" }

// maxName bounds a name. It is an element of a path.
const maxName = 200

// maxNames bounds how many names a queue may know. A client reads no more than
// maxReply at once, and would lose its connection over a longer list; offers made
// at the same time may exceed the bound by what they offer.
const maxNames = session.MaxReply / 2 / (maxName + 4)

// OfferNamed appends an element under a name, unless one was offered under it
// before and the name was not forgotten since: by whatever client, and whether
// or not the element is still in the queue. It reports whether this call
// appended it. Name and element are written in one transaction.
//
// A name has 1 to 200 bytes of printable ASCII without slashes; a queue knows
// about 10,000 of them at most. Errors are those
// of OfferAll. An [*InDoubtError] can simply be met by offering again.
func (q *Queue) OfferNamed(ctx context.Context, name string, data []byte) (offered bool, err error) {
	if err := errors.Join(q.check(), checkName(name)); err != nil {
		return false, err
	}
	elements, ops, err := q.prepare([][]byte{data})
	if err != nil {
		return false, err
	}
	t, err := q.c.Table()
	if err != nil {
		return false, err
	}
	path := queueNames(q.path) + "/" + name
	// A refused transaction costs the servers as much as one that is applied.
	known, err := t.DecideFor(ctx, path, session.OfNode)
	if err != nil {
		return false, fmt.Errorf("%w: offer: %w", idem.ErrUnavailable, err)
	}
	if known.Exists {
		return false, nil
	}
	if err := errors.Join(q.room(ctx, t, 1), q.roomForNames(ctx, t, maxNames-1)); err != nil {
		return false, err
	}
	ops = append(ops, q.c.Persistent(path, nil))
	var r session.Result
	for range held.MaxTries {
		r = once.Write(ctx, t, nil, ops...)
		switch {
		case r.Outcome == session.Applied:
			return true, nil
		case r.Outcome == session.Unknown:
			return false, &InDoubtError{Op: "offer", Elements: elements, Err: r.Err}
		case r.RefusedAt(1, zk.ErrNodeExists):
			return false, nil
		case r.RefusedAt(1, zk.ErrNoNode):
			if err := t.EnsureParentsFor(ctx, path); err != nil {
				return false, fmt.Errorf("%w: offer: %w", idem.ErrUnavailable, err)
			}
		case r.RefusedAt(0, zk.ErrNoNode):
			if err := q.ensure(ctx, t); err != nil {
				return false, err
			}
		default:
			return false, fmt.Errorf("%w: offer: %w", idem.ErrUnavailable, r.Err)
		}
	}
	return false, fmt.Errorf("%w: offer: %s vanished %d times: %w", idem.ErrUnavailable, q.name, held.MaxTries, r.Err)
}

// roomForNames returns nil if the queue knows so many names at most.
func (q *Queue) roomForNames(ctx context.Context, t *held.Table, most int) error {
	parent, err := session.Within(ctx, t.Session, func() (session.Hint, error) { return t.Hint(queueNames(q.path), session.OfNode) })
	if err != nil {
		return fmt.Errorf("%w: names: %w", idem.ErrUnavailable, err)
	}
	if int(parent.Children) > most {
		return fmt.Errorf("%w: it knows %d names, %d are the most", ErrFull, parent.Children, maxNames)
	}
	return nil
}

// Names lists the names that OfferNamed would not use again, in no order. The
// error wraps idem.ErrUnavailable, or ErrFull where there are more than
// anybody can list.
func (q *Queue) Names(ctx context.Context) ([]string, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	t, err := q.fresh(ctx) // others may have written a moment ago
	if err != nil {
		return nil, err
	}
	if err := q.roomForNames(ctx, t, 2*maxNames); err != nil {
		return nil, err
	}
	n, err := t.DecideFor(ctx, queueNames(q.path), session.OfChildren)
	if err != nil {
		return nil, fmt.Errorf("%w: names: %w", idem.ErrUnavailable, err)
	}
	return n.Names, nil
}

// ForgetName makes a name free again. One that is not known is no error. The
// error wraps idem.ErrUnavailable, also where it is not known whether it was
// done; doing it again does no harm.
func (q *Queue) ForgetName(ctx context.Context, name string) error {
	if err := errors.Join(q.check(), checkName(name)); err != nil {
		return err
	}
	t, err := q.c.Table()
	if err != nil {
		return err
	}
	r := once.Write(ctx, t, nil, &zk.DeleteRequest{Path: queueNames(q.path) + "/" + name, Version: -1})
	if r.Outcome == session.Applied || r.RefusedAt(0, zk.ErrNoNode) {
		return nil
	}
	return fmt.Errorf("%w: forget: %w", idem.ErrUnavailable, r.Err)
}

func checkName(name string) error {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, bad) || name == "." || name == ".." {
		return fmt.Errorf("zookeeper: queue: %.40q is no name of 1 to %d printable ASCII characters without slashes", name, maxName)
	}
	return nil
}
