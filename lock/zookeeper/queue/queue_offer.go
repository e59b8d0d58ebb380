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

// OfferAll appends elements in their order, with nothing between them, all or
// none, and returns their IDs. No elements are no error.
//
// The error wraps ErrElementTooLarge, ErrBatchTooLarge, ErrFull or
// idem.ErrUnavailable, and nothing was offered then; or it is an [*InDoubtError],
// with the IDs that the elements have if they are in the queue.
func (q *Queue) OfferAll(ctx context.Context, data [][]byte) (ids []string, err error) {
	if err := q.check(); err != nil || len(data) == 0 {
		return nil, err
	}
	elements, ops, err := q.prepare(data)
	if err != nil {
		return nil, err
	}
	t, err := q.c.Table()
	if err != nil {
		return nil, err
	}
	if err := q.room(ctx, t, len(data)); err != nil {
		return nil, err
	}
	var r session.Result
	for range held.MaxTries {
		r = once.Write(ctx, t, nil, ops...)
		switch {
		case r.Outcome == session.Applied:
			for _, e := range elements {
				ids = append(ids, e.ID)
			}
			return ids, nil
		case r.Outcome == session.Unknown:
			return nil, &InDoubtError{Op: "offer", Elements: elements, Err: r.Err}
		case !r.RefusedBy(zk.ErrNoNode):
			return nil, fmt.Errorf("%w: offer: %w", idem.ErrUnavailable, r.Err)
		}
		if err := q.ensure(ctx, t); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: offer: %s vanished %d times: %w", idem.ErrUnavailable, q.name, held.MaxTries, r.Err)
}

// prepare gives elements their names, and holds them against the limits.
func (q *Queue) prepare(data [][]byte) (elements []Element, ops []any, err error) {
	total := 0
	for i, d := range data {
		if len(d) > q.maxElement {
			return nil, nil, fmt.Errorf("%w: element %d has %d bytes, %d are the most", ErrElementTooLarge, i, len(d), q.maxElement)
		}
		e := Element{ID: line.Unique(), Data: d}
		op := q.c.Persistent(q.path+"/"+line.Prefix(element, e.ID), d)
		op.Flags |= zk.FlagSequence
		elements, ops = append(elements, e), append(ops, op)
		total += size(op)
	}
	if total > batchLimit {
		return nil, nil, fmt.Errorf("%w: %d elements make %d bytes, %d are the most", ErrBatchTooLarge, len(data), total, batchLimit)
	}
	return elements, ops, nil
}

// room returns nil if the queue has room for n more elements.
func (q *Queue) room(ctx context.Context, t *held.Table, n int) error {
	parent, err := session.Within(ctx, t.Session, func() (session.Hint, error) { return t.Hint(q.path, session.OfNode) })
	if err != nil {
		return fmt.Errorf("%w: offer: %w", idem.ErrUnavailable, err)
	}
	if int(parent.Children)+n > q.maxLength {
		return fmt.Errorf("%w: it has %d elements and was offered %d, %d are the most", ErrFull, parent.Children, n, q.maxLength)
	}
	return nil
}
