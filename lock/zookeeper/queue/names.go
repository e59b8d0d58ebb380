package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/once"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// namesOf is the path of the znode whose children are the names under which elements were
// offered. It is beside the queue, so the queue's lists do not show it.
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
	t, err := q.table()
	if err := errors.Join(checkName(name), err); err != nil {
		return false, err
	}
	path := namesOf(q.path) + "/" + name
	// A refused transaction costs the servers as much as an applied one.
	known, err := t.DecideFor(ctx, path, session.OfNode)
	if err != nil {
		return false, fmt.Errorf("%w: offer: %w", idem.ErrUnavailable, err)
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

// Names lists the names that OfferNamed does not use again, in no order. The error wraps
// idem.ErrUnavailable, or ErrFull if there are more than a client can list.
func (q *Queue) Names(ctx context.Context) ([]string, error) {
	t, err := q.fresh(ctx)
	if err != nil {
		return nil, err
	}
	if err := room(ctx, t, namesOf(q.path), 0, 2*maxNames); err != nil {
		return nil, err
	}
	n, err := t.DecideFor(ctx, namesOf(q.path), session.OfChildren)
	if err != nil {
		return nil, fmt.Errorf("%w: names: %w", idem.ErrUnavailable, err)
	}
	return n.Names, nil
}

// ForgetName makes a name free again. An unknown name is no error. The error wraps
// idem.ErrUnavailable, even if it is not known whether the name was forgotten. Calling it again
// does no harm.
func (q *Queue) ForgetName(ctx context.Context, name string) error {
	t, err := q.table()
	if err := errors.Join(checkName(name), err); err != nil {
		return err
	}
	r := once.Write(ctx, t, nil, &zk.DeleteRequest{Path: namesOf(q.path) + "/" + name, Version: -1})
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
