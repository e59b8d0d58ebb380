package queue

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
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
// It appends all of them or none. An empty list is no error.
//
// The error wraps ErrElementTooLarge, ErrBatchTooLarge, ErrFull or idem.ErrUnavailable if
// nothing was offered. Otherwise it is an [*InDoubtError] with the IDs that the elements have
// if they are in the queue.
func (q *Queue) OfferAll(ctx context.Context, data [][]byte) (ids []string, err error) {
	t, err := q.table()
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
			err = t.EnsureParentsFor(ctx, name)
		case r.RefusedBy(zk.ErrNoNode):
			err = line.EnsureFor(ctx, t, q.path)
		default:
			err = r.Err
		}
		if err != nil {
			return nil, false, fmt.Errorf("%w: offer: %w", idem.ErrUnavailable, err)
		}
	}
	return nil, false, fmt.Errorf("%w: offer: %s vanished %d times: %w", idem.ErrUnavailable, q.name, held.MaxTries, r.Err)
}

// prepare names the elements, and checks the limits.
func (q *Queue) prepare(data [][]byte) (elements []Element, ops []any, err error) {
	total := 0
	for i, d := range data {
		if len(d) > q.maxElement {
			return nil, nil, fmt.Errorf("%w: element %d has %d bytes, %d are the most", ErrElementTooLarge, i, len(d), q.maxElement)
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

// size is the number of bytes that a create has on the wire.
func size(r *zk.CreateRequest) int {
	n := 9 + 4 + len(r.Path) + 4 + len(r.Data) + 4 + 4
	for _, acl := range r.Acl {
		n += 12 + len(acl.Scheme) + len(acl.ID)
	}
	return n
}

// room returns nil if a znode may have n more children.
func room(ctx context.Context, t *held.Table, path string, n, most int) error {
	parent, err := session.Within(ctx, t.Session, func() (session.Hint, error) { return t.Hint(path, session.OfNode) })
	if err != nil {
		return fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
	}
	if int(parent.Children)+n > most {
		return fmt.Errorf("%w: it has %d elements or names and was given %d more, %d are the most", ErrFull, parent.Children, n, most)
	}
	return nil
}
