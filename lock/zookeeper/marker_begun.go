package zookeeper

import (
	"bytes"
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// marking is one MarkBegun under way: a transaction that may move the lock of a
// lease below its marker. It is seen through when its caller has gone, because the
// release has to know where the lock is.
type marking struct {
	l    *Lease
	data []byte // of the marker

	left bool          // nobody waits for it any more; guarded by the lease's mu
	err  error         // set before done is closed
	done chan struct{} // closed when it is known where the lock is, or the session is over
}

// MarkBegun implements [idem.MarkingLease]. It is one transaction, which may share a
// Multi with other writes. Where there is no marker yet it deletes the ephemeral
// znode of the lock, and makes the marker and an ephemeral znode below it. Else it
// sets the data of the marker. It has no effect for leases of a [Locker] without
// [WithDurableMarkers] and of other recipes.
//
// The error wraps idem.ErrLeaseLost where the lease is over and idem.ErrUnavailable
// where the marker was not acknowledged. [ErrNotPermitted] and any other refusal of
// the servers leave the lock as it was, and later calls of MarkOnRelease have no effect.
func (l *Lease) MarkBegun(ctx context.Context, m idem.Marker) error {
	if !l.marks.on {
		return nil
	}
	data, err := encodeMarker(&m)
	if err != nil {
		return fmt.Errorf("%w: mark: %w", idem.ErrUnavailable, err)
	}
	mk := &marking{l: l, data: data, done: make(chan struct{})}
	if err := mk.start(); err != nil {
		return err
	}
	select {
	case <-mk.done:
	case <-ctx.Done():
		l.mu.Lock()
		mk.left = true
		l.mu.Unlock()
		return fmt.Errorf("%w: mark: %w", idem.ErrUnavailable, context.Cause(ctx))
	}
	if over := l.over(); over != nil {
		return over
	}
	return mk.err
}

// start sends the transaction, unless the lease is over. A lock that is older than
// a second is looked at first, as before a delete: see young.
func (mk *marking) start() error {
	l, s := mk.l, mk.l.s
	if over := l.over(); over != nil {
		return over
	}
	look := l.suspect()
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.slot.phase != holding {
		return fmt.Errorf("%w: mark", idem.ErrLeaseLost)
	}
	l.mu.Lock()
	busy := l.marks.under != nil
	if !busy {
		l.marks.under = mk
	}
	l.mu.Unlock()
	if busy {
		return fmt.Errorf("%w: mark: another call is under way", idem.ErrUnavailable)
	}
	if look || !s.Ask(session.Request{Ops: mk.ops()}, mk.answered) {
		s.further(func() { mk.run(nil) })
	}
	return nil
}

// answered goes on with the answer to a transaction, on the writer's goroutine where
// there is nothing to wait for.
func (mk *marking) answered(r session.Result) {
	switch r.Outcome {
	case session.Applied, session.Unsent, session.Ended:
		mk.run(&r)
	default:
		mk.l.s.further(func() { mk.run(&r) })
	}
}

func (mk *marking) run(first *session.Result) {
	mk.err = mk.settle(first)
	mk.l.mu.Lock()
	mk.l.marks.under = nil
	mk.l.mu.Unlock()
	close(mk.done)
}

// settle goes on from the answer to a first transaction, or before it, until the
// marker is there or it is known that it will not be.
func (mk *marking) settle(first *session.Result) error {
	l, s := mk.l, mk.l.s
	for {
		var r session.Result
		if first != nil {
			r, first = *first, nil
		} else {
			held, done, err := mk.look()
			switch {
			case err != nil:
				return fmt.Errorf("%w: mark: %w", idem.ErrUnavailable, err)
			case !held:
				s.lose(l, fmt.Errorf("%w: its znode is gone", idem.ErrLeaseLost))
				return l.over()
			case done:
				return nil
			case mk.isLeft():
				return idem.ErrUnavailable // nobody reads this
			}
			r = s.Write(mk.ops()...)
		}
		switch {
		case r.Outcome == session.Applied:
			mk.applied(r.Zxid)
			return nil
		case r.Outcome == session.Unknown:
			mk.doubt()
			if err := s.FinalBarrier(); err != nil {
				return fmt.Errorf("%w: mark: %w", idem.ErrUnavailable, err)
			}
		case r.RefusedBy(zk.ErrNoNode): // the lock, or the marker above it, was deleted by hand
		case r.Outcome == session.Refused:
			l.mu.Lock()
			l.marks.bare = true
			l.mu.Unlock()
			return fmt.Errorf("%w: mark: %w", idem.ErrUnavailable, r.Err)
		default:
			return fmt.Errorf("%w: mark: %w", idem.ErrUnavailable, r.Err)
		}
	}
}

// ops are the operations of the transaction.
func (mk *marking) ops() []any {
	l, s := mk.l, mk.l.s
	path := l.slot.path
	if l.slot.marked {
		return []any{&zk.SetDataRequest{Path: path, Data: mk.data, Version: -1}}
	}
	return []any{
		&zk.DeleteRequest{Path: path, Version: -1},
		&zk.CreateRequest{Path: path, Data: mk.data, Acl: s.cfg.ACL, Flags: zk.FlagPersistent},
		s.lockAt(path+lockChild, l.marks.owner),
	}
}

// look reads whether the lock is held, and whether an earlier transaction has moved
// it below its marker. All of those are settled by then. One that only sets the
// marker's data is sent again, which does no harm.
func (mk *marking) look() (held, done bool, err error) {
	l, s := mk.l, mk.l.s
	path, czxid := l.at()
	n, err := s.Decide(path, session.OfNode)
	switch {
	case err != nil, !n.Exists:
		return false, false, err
	case n.Czxid == czxid:
		return true, false, nil
	case l.slot.marked || n.Session != 0:
		return false, false, nil
	}
	child, err := s.Decide(path+lockChild, session.OfNode)
	if err != nil || !child.Exists || child.Session != s.ID() || !bytes.Equal(child.Data, l.marks.owner) {
		return false, false, err
	}
	mk.applied(child.Czxid)
	return true, true, nil
}

// applied notes where the lock is. czxid is that of a znode that the transaction
// has made.
func (mk *marking) applied(czxid int64) {
	l := mk.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.slot.marked {
		l.slot.marked, l.czxid = true, czxid
	}
	l.marks.there = mk.data
}

// doubt notes that the marker's data may have been set.
func (mk *marking) doubt() {
	l := mk.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slot.marked {
		l.marks.there = inDoubt
	}
}

func (mk *marking) isLeft() bool {
	mk.l.mu.Lock()
	defer mk.l.mu.Unlock()
	return mk.left
}

// marking is the MarkBegun that is under way; nil where none is.
func (l *Lease) marking() *marking {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.marks.under
}
