package idem

import (
	"context"
	"errors"
)

// mark has the release of a lease leave what a record says of its key.
func mark(lease Lease, rec *Record) {
	l, ok := lease.(MarkingLease)
	if !ok {
		return
	}
	switch rec.State {
	case StateCompleted, StateExpired:
		m := NewMarker(rec)
		m.State = StateCompleted
		l.Mark(m)
	case StateUnknown:
		l.Mark(NewMarker(rec))
	case StateReleased, StateIssued:
		l.Mark(nil)
	}
}

// byMarker is who decides where a marker knows more than the token store.
var byMarker = Decision{By: "marker", Reason: "the token store had lost what a durable marker tells"}

// heed brings together what the store has of a key and what a marker said of it
// when its lock was taken. told says that the marker alone answers the request.
// It comes before Begin: what is marked must not begin on the word of a store
// that has lost or forgotten something.
func (e *Engine) heed(ctx context.Context, r *request, lease Lease) (res *Result, told bool, err error) {
	m := markerOf(lease)
	if m == nil {
		return nil, false, nil
	}
	r.open = true
	if err := e.read(ctx, r); err != nil {
		return nil, true, err
	}
	rec := &r.seen.Record
	switch {
	case rec.State == StateNone:
		e.observe(ctx, r, &Event{Type: EventMarked, Attempt: m.Attempt, State: m.State})
		err := e.restoreMarked(ctx, r, lease, m)
		return nil, err != nil, err
	case rec.State == StateCompleted, rec.State == StateExpired, later(rec, m):
		return nil, false, nil // the store knows as much, or more
	case rec.State.Open() && m.State == StateCompleted:
		e.observe(ctx, r, &Event{Type: EventMarked, Attempt: m.Attempt, State: m.State})
		gone := Applied(Response{Omitted: true})
		if _, err := e.settleAs(ctx, r, lease, gone, byMarker, nil); err != nil {
			return nil, true, err
		}
		return nil, false, nil
	case rec.State.Open(), rec.Attempt == m.Attempt:
		return nil, false, nil // in doubt, or decided since the marker was left
	}
	// The store fell back to what was before the marked attempt.
	e.observe(ctx, r, &Event{Type: EventMarked, Attempt: m.Attempt, State: m.State})
	*rec = m.Record()
	res, err = e.judge(r, rec)
	if res == nil && err == nil { // unknown, and there is no record to settle
		err = refuse(CodeOutcomeUnknown, errors.New("idem: only a marker knows of the attempt"))
	}
	return res, true, err
}

// restoreMarked writes a record anew from a marker. A response is not among
// what a marker holds.
func (e *Engine) restoreMarked(ctx context.Context, r *request, lease Lease, m *Marker) error {
	s := Settlement{Attempt: m.Attempt, ID: m.Attempt.Nonce, State: m.State, ResultTTL: r.Policy.ResultTTL, KeyTTL: r.Policy.KeyTTL,
		Trusted: lease.Err() == nil, Decision: byMarker, Restore: &Restore{Kind: m.Kind, Route: m.Route, Fingerprint: m.Fingerprint, Started: m.Started}}
	if m.State == StateCompleted {
		s.Response = &Response{Omitted: true}
	}
	if _, err := e.callSettle(ctx, r, &s); err != nil {
		return storeRefusal(err)
	}
	return nil
}

// markerOf is what was found in place of the lock; nil where there was nothing.
func markerOf(lease Lease) *Marker {
	if l, ok := lease.(MarkingLease); ok {
		return l.Marker()
	}
	return nil
}

// later reports whether a record is of a later attempt than a marker. Only an
// aborted Begin changes the fence and not the number, of a record that was closed.
func later(rec *Record, m *Marker) bool {
	a, b := rec.Attempt, m.Attempt
	if a.Fence.Domain != b.Fence.Domain {
		return a.Number > b.Number
	}
	return b.Fence.Before(a.Fence) && (a.Number > b.Number || a.Number == b.Number && !rec.State.Open())
}

// behind reports whether an attempt that just began is none after the marked one:
// the store has lost its records since heed.
func behind(lease Lease, rec *Record) bool {
	m := markerOf(lease)
	return m != nil && rec.Attempt.Number <= m.Attempt.Number
}

// mark has the release leave what became of the attempt.
func (run *run) mark(settled bool) {
	if !settled && run.seen.Record.Attempt != run.settlement.Attempt && !run.lost() {
		run.markOwn()
		return
	}
	mark(run.lease, &run.seen.Record)
}

// markOwn leaves what the holder knows. Where the record is of another attempt
// although the lock is held, the store fell back to what was before this one.
func (run *run) markOwn() {
	mark(run.lease, &Record{State: run.settlement.State, Kind: run.restore.Kind, Route: run.restore.Route,
		Attempt: run.settlement.Attempt, Fingerprint: run.restore.Fingerprint, Started: run.restore.Started})
}
