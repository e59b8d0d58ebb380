package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/once"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Offer appends an element and returns its ID. See OfferAll for the errors.
func (q *Queue) Offer(ctx context.Context, data []byte) (id string, err error) {
	ids, err := q.OfferAll(ctx, [][]byte{data})
	if err != nil {
		return "", err
	}
	return ids[0], nil
}

// OfferAll appends elements in their order, with nothing between them, and returns their IDs.
// They are applied together or not at all. An empty list is no error.
//
// The error wraps ErrElementTooLarge, ErrBatchTooLarge, ErrFull or driver.ErrUnavailable if
// nothing was offered. Otherwise it is an [*InDoubtError] with the IDs of the elements, in case
// they are in the queue.
func (q *Queue) OfferAll(ctx context.Context, data [][]byte) (ids []string, err error) {
	t, err := q.c.Table()
	if len(data) == 0 || err != nil {
		return nil, err
	}
	elements, _, err := q.offer(ctx, t, data, "")
	for _, e := range elements {
		ids = append(ids, e.ID)
	}
	return ids, err
}

// offer appends elements. If name is not empty, it creates that znode in the same transaction,
// and offers nothing if the znode is there already.
func (q *Queue) offer(ctx context.Context, t *held.Table, data [][]byte, name string) (elements []Element, offered bool, err error) {
	elements, ops, err := q.prepare(data)
	if err != nil {
		return nil, false, err
	}
	if err := room(ctx, t, q.path, len(data), q.maxLength); err != nil {
		return nil, false, err
	}
	if name != "" {
		ops = append(ops, q.c.Persistent(name, nil))
	}
	var r session.Result
	for range held.MaxTries {
		r = once.Write(ctx, t, nil, ops...)
		switch {
		case r.Outcome == session.Applied:
			return elements, true, nil
		case r.Outcome == session.Unknown:
			return nil, false, &InDoubtError{Op: "offer", Elements: elements, Err: r.Err}
		case r.RefusedAt(len(data), zk.ErrNodeExists):
			return nil, false, nil
		case r.RefusedAt(len(data), zk.ErrNoNode):
			err = t.Parents.EnsureParentsFor(ctx, name)
		case r.RefusedBy(zk.ErrNoNode):
			err = line.EnsureFor(ctx, t, q.path)
		default:
			err = r.Err
		}
		if err != nil {
			return nil, false, fmt.Errorf("%w: offer: %w", driver.ErrUnavailable, err)
		}
	}
	return nil, false, fmt.Errorf("%w: offer: %s vanished %d times: %w", driver.ErrUnavailable, q.name, held.MaxTries, r.Err)
}

// prepare names the elements, and checks the limits.
func (q *Queue) prepare(data [][]byte) (elements []Element, ops []any, err error) {
	total := 0
	for i, d := range data {
		if len(d) > elementLimit {
			return nil, nil, fmt.Errorf("%w: element %d has %d bytes, %d are the most", ErrElementTooLarge, i, len(d), elementLimit)
		}
		e := Element{ID: line.Unique(), Data: d}
		op := q.c.Persistent(q.path+"/"+line.Numbered(line.Prefix(element, e.ID), 0), d)
		op.Flags |= zk.FlagSequence
		elements, ops = append(elements, e), append(ops, op)
		total += size(op)
	}
	if total > batchLimit {
		return nil, nil, fmt.Errorf("%w: %d elements make %d bytes, %d are the most", ErrBatchTooLarge, len(data), total, batchLimit)
	}
	return elements, ops, nil
}

// size is the number of bytes of a create on the wire.
func size(r *zk.CreateRequest) int {
	n := 9 + 4 + len(r.Path) + 4 + len(r.Data) + 4 + 4
	for _, acl := range r.Acl {
		n += 12 + len(acl.Scheme) + len(acl.ID)
	}
	return n
}

// room returns nil if a znode may have n more children.
func room(ctx context.Context, t *held.Table, path string, n, most int) error {
	parent, err := session.Within(ctx, t.Session.Status, func() (session.Hint, error) { return t.Session.Reads.Hint(path, session.OfNode) })
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	if int(parent.Children)+n > most {
		return fmt.Errorf("%w: it has %d elements or names and was given %d more, %d are the most", ErrFull, parent.Children, n, most)
	}
	return nil
}

// namesOf is the path of the parent of a queue's names. It is beside the queue, so the queue's
// lists do not show it.
func namesOf(path string) string { return path + "-names" }

// maxName bounds a name, which is an element of a path.
const maxName = 200

// maxNames bounds the names of a queue. A client reads no more than MaxReply at once, and would
// lose its connection over a longer list. Offers made at the same time may exceed the bound by
// their number.
const maxNames = session.MaxReply / 2 / (maxName + 4)

// OfferNamed appends an element under a name and reports true. It reports false, and appends
// nothing, if any client has used the name before and it was not forgotten since. The element
// of that name may be in the queue or not. The name and the element are written in one
// transaction.
//
// A name has 1 to 200 bytes of printable ASCII without slashes. A queue knows about 10,000 of
// them at most. The errors are those of OfferAll. After an [*InDoubtError] the caller can offer
// again.
func (q *Queue) OfferNamed(ctx context.Context, name string, data []byte) (offered bool, err error) {
	t, err := q.c.Table()
	if err := errors.Join(checkName(name), err); err != nil {
		return false, err
	}
	path := namesOf(q.path) + "/" + name
	// A refused transaction costs the servers as much as an applied one.
	known, err := t.Session.Reads.DecideFor(ctx, path, session.OfNode)
	if err != nil {
		return false, fmt.Errorf("%w: offer: %w", driver.ErrUnavailable, err)
	}
	if known.Exists {
		return false, nil
	}
	if err := room(ctx, t, namesOf(q.path), 1, maxNames); err != nil {
		return false, err
	}
	_, offered, err = q.offer(ctx, t, [][]byte{data}, path)
	return offered, err
}

// Names lists the names of OfferNamed that were not forgotten since, in no order. The error wraps
// driver.ErrUnavailable, or ErrFull if there are more than a client can list.
func (q *Queue) Names(ctx context.Context) ([]string, error) {
	t, err := q.fresh(ctx)
	if err != nil {
		return nil, err
	}
	if err := room(ctx, t, namesOf(q.path), 0, 2*maxNames); err != nil {
		return nil, err
	}
	n, err := t.Session.Reads.DecideFor(ctx, namesOf(q.path), session.OfChildren)
	if err != nil {
		return nil, fmt.Errorf("%w: names: %w", driver.ErrUnavailable, err)
	}
	return n.Names, nil
}

// ForgetName makes a name free again. An unknown name is no error. The error wraps
// driver.ErrUnavailable, even if it is not known whether the name was forgotten. Calling it again
// does no harm.
func (q *Queue) ForgetName(ctx context.Context, name string) error {
	t, err := q.c.Table()
	if err := errors.Join(checkName(name), err); err != nil {
		return err
	}
	r := once.Write(ctx, t, nil, &zk.DeleteRequest{Path: namesOf(q.path) + "/" + name, Version: -1})
	if r.Outcome == session.Applied || r.RefusedAt(0, zk.ErrNoNode) {
		return nil
	}
	return fmt.Errorf("%w: forget: %w", driver.ErrUnavailable, r.Err)
}

func checkName(name string) error {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || r == '/' }
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, bad) || name == "." || name == ".." {
		return fmt.Errorf("zookeeper: queue: %.40q is no name of 1 to %d printable ASCII characters without slashes", name, maxName)
	}
	return nil
}
