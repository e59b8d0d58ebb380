package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// markBegun leaves a marker of the new attempt. From then on the outcome is in doubt, whatever
// happens to the token store, the lock and this process. If the marker is not acknowledged, the
// attempt is over, and markBegun returns a refusal.
func (e *Engine) markBegun(ctx context.Context, r *request, lease driver.Lease) error {
	l, ok := lease.(driver.MarkingLease)
	if !ok || !l.LeavesMarkers() {
		return nil
	}
	m := *driver.NewMarker(&r.record)
	m.State = driver.StateUnknown
	call, cancel := context.WithTimeout(ctx, e.cfg.lockTimeout)
	err := callMarkBegun(call, l, m)
	cancel()
	if err == nil {
		err = lease.Err() // it may have been lost since
	}
	if err == nil {
		return nil
	}
	refusal := refuse(CodeUnavailable, err)
	if errors.Is(err, driver.ErrLeaseLost) {
		refusal = refuse(CodeOwnershipLost, err)
	}
	e.neverRan(ctx, r, lease)
	return refusal
}

func callMarkBegun(ctx context.Context, l driver.MarkingLease, m driver.Marker) (err error) {
	defer recovered("MarkBegun", &err)
	return l.MarkBegun(ctx, m)
}

// neverRan settles the attempt that has just begun as released, in the background and under
// the lock. It does not abort the attempt, because the marker may be there and would keep
// the key in doubt although nothing ran. An attempt that started from one in doubt becomes
// unknown, like that one.
func (e *Engine) neverRan(ctx context.Context, r *request, lease driver.Lease) {
	r.open = true // until the attempt is settled, nothing runs unprotected
	e.settleInBackground(ctx, r.withoutHandler(lease), false)
}

// neverRuns is neverRan after Close, which leaves no time for work in the background. If the store
// does not answer, the next holder of the lock finds the attempt interrupted.
func (e *Engine) neverRuns(ctx context.Context, r *request, lease driver.Lease) {
	run := r.withoutHandler(lease)
	if _, err := e.settleOnce(ctx, run, e.cfg.settleTimeout); err != nil {
		e.abandon(ctx, run, false, err)
	} else {
		run.mark()
	}
	lease.ReleaseInBackground()
}

// withoutHandler is the run of an attempt that has begun and had no effect.
func (r *request) withoutHandler(lease driver.Lease) *run {
	run := &run{request: r, lease: lease, settlement: driver.Settlement{Attempt: r.record.Attempt}, started: time.Now()}
	o := outcomeNoEffect
	if r.startedFromDoubt() {
		o = outcomeInDoubt
	}
	run.decide(o, nil)
	return run
}

// mark sets the marker for the release of a lease according to a record. A record from before
// the marker we found changes nothing, unless it is completed.
func mark(lease driver.Lease, rec *driver.Record) {
	l, ok := lease.(driver.MarkingLease)
	if !ok || !l.LeavesMarkers() {
		return
	}
	m := l.Marker()
	decides := m == nil || m.State == driver.StateUnknown && rec.Attempt == m.Attempt || counts(rec, m)
	switch rec.State {
	case driver.StateCompleted, driver.StateExpired:
		m := driver.NewMarker(rec)
		m.State = driver.StateCompleted
		l.MarkOnRelease(m)
	case driver.StateUnknown:
		if decides {
			l.MarkOnRelease(driver.NewMarker(rec))
		}
	case driver.StateReleased, driver.StateIssued:
		if decides {
			l.MarkOnRelease(nil)
		}
	}
}

// byMarker is the author of a decision if a marker knows more than the token store.
var byMarker = driver.Decision{By: "marker", Reason: "the token store had lost what a durable marker tells"}

// heed compares the record with the marker we found when we took the lock. told says that
// the marker alone answers the request. heed comes before Begin, because a store that has
// lost the record would let a marked attempt begin again.
func (e *Engine) heed(ctx context.Context, r *request, lease driver.Lease) (res *Result, told bool, err error) {
	m := markerOf(lease)
	if m == nil {
		return nil, false, nil
	}
	r.open = true
	if err := e.read(ctx, r); err != nil {
		return nil, true, err
	}
	rec := &r.record
	fell := rec.Attempt != m.Attempt && !counts(rec, m)
	if fell || m.State == driver.StateCompleted && !counts(rec, m) {
		e.observe(ctx, r, telemetry.Event{Type: telemetry.EventMarked, Attempt: m.Attempt, State: m.State})
	}
	if fell { // it is missing, or older than the marked attempt
		if err := e.restoreMarked(ctx, r, lease, m, m.Attempt); err != nil {
			return nil, true, err
		}
		if m.State == driver.StateUnknown && rec.Attempt != m.Attempt && idle(rec) && !counts(rec, m) {
			if err := e.restoreUnderLease(ctx, r, lease, m); err != nil {
				return nil, true, err
			}
		}
	}
	switch {
	case follows(rec, m):
		return nil, false, nil
	case rec.State.Open(): // and the marker says completed
		_, err := e.settleAs(ctx, r, lease, Applied(Response{Omitted: true}), byMarker, nil)
		return nil, err != nil, err
	}
	// Only the marker knows, because the store cannot write the record anew.
	*rec = m.Record()
	res, err = e.judge(r, rec)
	if res == nil && err == nil { // unknown, and there is no record to settle
		err = refuse(CodeOutcomeUnknown, errors.New("idem: only a marker knows of the attempt"))
	}
	return res, true, err
}

// counts reports whether a record knows as much as a marker, or more. No attempt follows a
// completed one. So beside a completed marker a record that is not completed is always from
// before that, whatever its fence and its number are.
func counts(rec *driver.Record, m *driver.Marker) bool {
	if rec.State == driver.StateCompleted || rec.State == driver.StateExpired {
		return true
	}
	return m.State == driver.StateUnknown && rec.State != driver.StateNone && m.Before(rec)
}

// follows reports whether a record goes on from a marker, so that the steps of a request may go
// on from the record. The record counts, or the attempt is in doubt in both, or it was decided
// after the marker was left.
func follows(rec *driver.Record, m *driver.Marker) bool {
	return counts(rec, m) || m.State == driver.StateUnknown && (rec.State.Open() || rec.Attempt == m.Attempt)
}

// restoreMarked lets the store write its record anew from a marker, without a response, and
// leaves the result in r.record. The store keeps a record if its attempt is not earlier than
// the attempt as.
func (e *Engine) restoreMarked(ctx context.Context, r *request, lease driver.Lease, m *driver.Marker, as driver.Attempt) error {
	s := driver.Settlement{Attempt: as, ID: as.Nonce, State: m.State, ResultTTL: r.Policy.ResultTTL, KeyTTL: r.Policy.KeyTTL,
		LeaseTrusted: lease.Err() == nil, Decision: byMarker}
	marked := m.Record()
	repair := repairOf(&marked)
	s.Repair = &repair
	if m.State == driver.StateCompleted {
		s.Response = &driver.Response{Omitted: true}
	}
	if _, err := e.callSettle(ctx, r, &s, e.cfg.settleTimeout); err != nil {
		return storeRefusal(err)
	}
	return nil
}

// restoreUnderLease writes a marked attempt in doubt anew, as the next attempt and under the
// fence of our lease. The store has kept a record without an attempt, because an Abort left its
// own fence there, and that fence is above the marked one. Ours is above both. Such a record
// would otherwise hide the attempt from the resolver and from operators until it expires. A
// later lease has to settle an outcome in doubt, because it shuts out everyone before it.
func (e *Engine) restoreUnderLease(ctx context.Context, r *request, lease driver.Lease, m *driver.Marker) error {
	as := driver.Attempt{Number: m.Attempt.Number + 1, Fence: lease.Fence(), Nonce: r.nonce}
	if err := e.restoreMarked(ctx, r, lease, m, as); err != nil {
		return err
	}
	if r.record.Attempt == as && r.record.State.Open() {
		return refuse(CodeUnavailable, fmt.Errorf("%w: the record was just written anew from a marker", driver.ErrUnavailable))
	}
	return nil
}

// idle reports whether a record waits for its next attempt.
func idle(rec *driver.Record) bool {
	return rec.State == driver.StateReleased || rec.State == driver.StateIssued
}

// markerOf is the marker we found in place of the lock, or nil.
func markerOf(lease driver.Lease) *driver.Marker {
	if l, ok := lease.(driver.MarkingLease); ok {
		return l.Marker()
	}
	return nil
}

// beforeMarker reports whether a new attempt began from a record that does not go on from the
// marker. Then the store has fallen back since heed, or a late call has changed an old record.
func beforeMarker(lease driver.Lease, r *request) bool {
	m, was := markerOf(lease), r.repair.Replaced
	return m != nil && (r.record.Attempt.Number <= m.Attempt.Number || !follows(&driver.Record{State: was.State, Attempt: was.Attempt}, m))
}

// mark sets the marker for the release according to the end of the attempt.
func (run *run) mark() {
	if run.record.Attempt != run.settlement.Attempt && !run.lost() {
		run.markOwn()
		return
	}
	mark(run.lease, &run.record)
}

// markOwn sets a marker from what the holder itself knows. If the record is of another attempt
// although we hold the lock, the store fell back to the time before this one. If there is no
// record, the attempt was of a token, and there was nothing to keep.
func (run *run) markOwn() {
	mark(run.lease, &driver.Record{State: run.settlement.State, Kind: run.repair.Kind, Route: run.repair.Route,
		Attempt: run.settlement.Attempt, Fingerprint: run.repair.Fingerprint, Started: run.repair.Started,
		ResultTTL: run.repair.ResultTTL, KeyTTL: run.repair.KeyTTL})
}
