package zookeeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

var _ driver.MarkingLease = (*Lease)(nil)

// Marker implements [driver.MarkingLease].
func (l *Lease) Marker() *driver.Marker {
	if l.marker.found == nil {
		return nil
	}
	m := *l.marker.found
	return &m
}

// LeavesMarkers implements [driver.MarkingLease]. It is true with [WithDurableMarkers].
func (l *Lease) LeavesMarkers() bool { return l.marker.on }

// MarkOnRelease implements [driver.MarkingLease]. Without [WithDurableMarkers] it has no
// effect, and an existing marker stays. If a marker could not be read back, because of its
// state or because a name is too long, MarkOnRelease logs an error and changes nothing.
func (l *Lease) MarkOnRelease(m *driver.Marker) {
	if !l.marker.on {
		return
	}
	var data []byte
	if m != nil {
		var err error
		if data, err = encodeMarker(m); err != nil {
			l.marker.s.log.Error("zookeeper: this marker cannot be left", "path", l.marker.path, "state", m.State, "error", err)
			return
		}
	}
	l.marker.mu.Lock()
	defer l.marker.mu.Unlock()
	if l.held.Over() == nil {
		l.marker.set, l.marker.data = true, data
	}
}

// MarkBegun implements [driver.MarkingLease]. It is one transaction. The transaction may share
// a Multi with other writes. If there is no marker yet, it deletes the ephemeral znode of
// the lock, and makes the marker and an ephemeral znode below it. Otherwise it sets the data
// of the marker. It has no effect for leases of a [Locker] without [WithDurableMarkers].
//
// The error wraps driver.ErrLeaseLost if the lease is over, and driver.ErrUnavailable if the
// marker was not acknowledged. [ErrNotPermitted] and any other refusal of the servers leave
// the lock as it was, and later calls of MarkBegun and MarkOnRelease have no effect.
func (l *Lease) MarkBegun(ctx context.Context, m driver.Marker) error {
	if !l.marker.on {
		return nil
	}
	data, err := encodeMarker(&m)
	if err != nil {
		return unmarked(err)
	}
	settled, old, err := l.held.Move()
	switch {
	case err != nil:
		return err
	case settled == nil:
		return unmarked(errors.New("another call is under way"))
	}
	mk := &marking{m: l.marker, data: data}
	mk.path, mk.czxid = l.held.Where()
	done := make(chan error, 1)
	l.marker.s.table.Further(func() {
		here, err := mk.run(ctx, old) // a lock that is not young is read first, as before a delete
		settled(mk.path, mk.czxid)
		if !here {
			err = l.held.Lose()
		}
		done <- err
	})
	select {
	case err := <-done:
		if over := l.held.Over(); over != nil {
			return over
		}
		return err
	case <-ctx.Done():
		return unmarked(context.Cause(ctx))
	}
}

func unmarked(err error) error { return fmt.Errorf("%w: mark: %w", driver.ErrUnavailable, err) }

// marking is one MarkBegun under way. Its transaction may move the lock of a lease below a
// marker. The marking goes on when its caller has gone, because the release has to know
// where the lock is.
type marking struct {
	m    *marker
	data []byte // of the marker

	path  string // where the lock is, as far as this marking knows
	czxid int64
}

// run sends the transaction until its outcome is known, or the session is over. It sends
// it only once if ctx has ended. here is false if the lock has gone.
func (mk *marking) run(ctx context.Context, look bool) (here bool, err error) {
	for ; ; look = true {
		if look {
			here, err := mk.look()
			switch {
			case err != nil:
				return true, unmarked(err)
			case !here:
				return false, nil
			case ctx.Err() != nil:
				return true, unmarked(context.Cause(ctx))
			}
		}
		r := mk.m.s.session.Writes.Do(mk.ops()...)
		switch {
		case r.Outcome == session.Applied:
			mk.applied(r.Zxid)
			return true, nil
		case r.Outcome == session.Unknown, r.RefusedBy(zk.ErrNoNode): // the next look decides
		case r.Outcome == session.Refused:
			mk.m.mu.Lock()
			mk.m.bare = true
			mk.m.mu.Unlock()
			return true, unmarked(r.Err)
		default:
			return true, unmarked(r.Err)
		}
	}
}

// below reports whether the lock is below its marker already.
func (mk *marking) below() bool { return mk.path != mk.m.path }

// ops are the operations of the transaction.
func (mk *marking) ops() []any {
	if !mk.below() {
		return []any{
			&zk.DeleteRequest{Path: mk.m.path, Version: -1},
			mk.m.s.table.Client.Persistent(mk.m.path, mk.data),
			mk.m.s.table.Client.Ephemeral(mk.m.path+lockChild, mk.m.owner.Encode()),
		}
	}
	mk.m.mu.Lock()
	mk.m.there = nil // until the transaction is acknowledged
	mk.m.mu.Unlock()
	return []any{&zk.SetDataRequest{Path: mk.m.path, Data: mk.data, Version: -1}}
}

// look reads whether the lock is held, and whether an earlier transaction has moved it
// below its marker. A deciding read shows every earlier transaction. If the lock is below
// its marker, run sends the marker's data again. This does no harm.
func (mk *marking) look() (here bool, err error) {
	n, err := mk.m.s.session.Reads.Decide(mk.path, session.OfNode)
	switch {
	case err != nil, !n.Exists:
		return false, err
	case n.Czxid == mk.czxid:
		return true, nil
	case mk.below():
		return false, nil
	}
	// The znode is the marker, or the lock of another owner, which has no children.
	child, err := mk.m.s.session.Reads.Decide(mk.m.path+lockChild, session.OfNode)
	if err != nil || child.Session != mk.m.s.session.Status.ID() || !bytes.Equal(child.Data, mk.m.owner.Encode()) {
		return false, err
	}
	mk.applied(child.Czxid)
	return true, nil
}

// applied notes that the marker is there, and where the lock is. czxid is the czxid of the
// transaction's new znodes.
func (mk *marking) applied(czxid int64) {
	if !mk.below() {
		mk.path, mk.czxid = mk.m.path+lockChild, czxid
	}
	mk.m.mu.Lock()
	defer mk.m.mu.Unlock()
	mk.m.marked, mk.m.there = true, mk.data
}
