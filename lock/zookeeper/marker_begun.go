package zookeeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// marking is one MarkBegun under way: a transaction that may move the lock of a lease below
// its marker. It goes on when its caller has gone, because the release has to know where
// the lock is.
type marking struct {
	l    *Lease
	data []byte // of the marker

	path  string // where the lock is, as far as this marking knows
	czxid int64

	left atomic.Bool   // the caller has gone
	err  error         // set before done is closed
	done chan struct{} // closed when it is known where the lock is, or the session is over
}

// MarkBegun implements [idem.MarkingLease]. It is one transaction, which may share a
// Multi with other writes. If there is no marker yet, it deletes the ephemeral znode of the
// lock, and makes the marker and an ephemeral znode below it. Otherwise it sets the data of
// the marker. It has no effect for leases of a [Locker] without [WithDurableMarkers].
//
// The error wraps idem.ErrLeaseLost if the lease is over, and idem.ErrUnavailable if the
// marker was not acknowledged. [ErrNotPermitted] and any other refusal of the servers leave
// the lock as it was, and later calls of Mark have no effect.
func (l *Lease) MarkBegun(ctx context.Context, m idem.Marker) error {
	if !l.marks.on {
		return nil
	}
	data, err := encodeMarker(&m)
	if err != nil {
		return unmarked(err)
	}
	settled, old, err := l.Move()
	switch {
	case err != nil:
		return err
	case settled == nil:
		return unmarked(errors.New("another call is under way"))
	}
	mk := &marking{l: l, data: data, done: make(chan struct{})}
	mk.path, mk.czxid = l.Where()
	run := func(first *session.Result) {
		mk.err = mk.settle(first)
		settled(mk.path, mk.czxid)
		close(mk.done)
	}
	s := l.marks.s
	// A lock that is not young is read first, as before a delete.
	if old || !s.Ask(session.Request{Ops: mk.ops()}, func(r session.Result) {
		switch r.Outcome {
		case session.Applied, session.Unsent, session.Ended:
			run(&r) // there is nothing to wait for
		default:
			s.Further(func() { run(&r) })
		}
	}) {
		s.Further(func() { run(nil) })
	}
	select {
	case <-mk.done:
	case <-ctx.Done():
		mk.left.Store(true)
		return unmarked(context.Cause(ctx))
	}
	if over := l.Over(); over != nil {
		return over
	}
	return mk.err
}

func unmarked(err error) error { return fmt.Errorf("%w: mark: %w", idem.ErrUnavailable, err) }

// settle goes on from the answer to a first transaction, or before it, until the marker is
// there or it is known that it never will be.
func (mk *marking) settle(first *session.Result) error {
	m, s := mk.l.marks, mk.l.marks.s
	for {
		var r session.Result
		if first != nil {
			r, first = *first, nil
		} else {
			held, done, err := mk.look()
			switch {
			case err != nil:
				return unmarked(err)
			case !held:
				return mk.l.Lose()
			case done:
				return nil
			case mk.left.Load():
				return idem.ErrUnavailable // the caller has gone
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
				return unmarked(err)
			}
		case r.RefusedBy(zk.ErrNoNode): // the lock, or the marker above it, was deleted by hand
		case r.Outcome == session.Refused:
			m.mu.Lock()
			m.bare = true
			m.mu.Unlock()
			return unmarked(r.Err)
		default:
			return unmarked(r.Err)
		}
	}
}

// below reports whether the lock is below its marker already.
func (mk *marking) below() bool { return mk.path != mk.l.marks.path }

// ops are the operations of the transaction.
func (mk *marking) ops() []any {
	m := mk.l.marks
	if mk.below() {
		return []any{&zk.SetDataRequest{Path: m.path, Data: mk.data, Version: -1}}
	}
	return []any{
		&zk.DeleteRequest{Path: m.path, Version: -1},
		m.s.Persistent(m.path, mk.data),
		m.s.Ephemeral(m.path+lockChild, m.owner.Encode()),
	}
}

// look reads whether the lock is held, and whether an earlier transaction has moved it
// below its marker. All earlier transactions are settled by then. A transaction that only
// sets the marker's data is sent again, which does no harm.
func (mk *marking) look() (held, done bool, err error) {
	m := mk.l.marks
	n, err := m.s.Decide(mk.path, session.OfNode)
	switch {
	case err != nil, !n.Exists:
		return false, false, err
	case n.Czxid == mk.czxid:
		return true, false, nil
	case mk.below() || n.Session != 0:
		return false, false, nil
	}
	child, err := m.s.Decide(m.path+lockChild, session.OfNode)
	if err != nil || !child.Exists || child.Session != m.s.ID() || !bytes.Equal(child.Data, m.owner.Encode()) {
		return false, false, err
	}
	mk.applied(child.Czxid)
	return true, true, nil
}

// applied notes that the marker is there, and where the lock is. czxid is that of a znode
// that the transaction has made.
func (mk *marking) applied(czxid int64) {
	m := mk.l.marks
	if !mk.below() {
		mk.path, mk.czxid = m.path+lockChild, czxid
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.marked, m.there = true, mk.data
}

// doubt notes that the marker's data may have been set.
func (mk *marking) doubt() {
	m := mk.l.marks
	m.mu.Lock()
	defer m.mu.Unlock()
	if mk.below() {
		m.there = inDoubt
	}
}
