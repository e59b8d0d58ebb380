package idem

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// markBegun leaves a marker of the new attempt. From then on the outcome is in doubt, whatever
// happens to the token store, the lock and this process. If the marker is not acknowledged, the
// attempt is over, and markBegun returns a refusal.
func (m *lockMode) markBegun(ctx context.Context, r *request, lease *held, b begun) error {
	l, ok := lease.Lease.(driver.MarkingLease)
	if !ok || !l.LeavesMarkers() {
		return nil
	}
	marker := *driver.NewMarker(&b.record)
	marker.State = driver.StateUnknown
	call, cancel := context.WithTimeout(ctx, m.cfg.lockTimeout)
	err := callMarkBegun(call, l, marker)
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
	m.neverRan(ctx, r, lease, b)
	return refusal
}

func callMarkBegun(ctx context.Context, l driver.MarkingLease, m driver.Marker) (err error) {
	defer recovered("MarkBegun", &err)
	return l.MarkBegun(ctx, m)
}

// mark sets the marker for the release of a lease according to a record. A record from before
// the marker we found changes nothing, unless it is completed.
func mark(lease *held, rec *driver.Record) {
	l, ok := lease.Lease.(driver.MarkingLease)
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

// heed compares the record with the marker we found when we took the lock, and returns the record. told
// says that the marker alone answers the request. heed comes before Begin, because a store that has
// lost the record would let a marked attempt begin again. Without a marker it reads nothing.
func (m *lockMode) heed(ctx context.Context, r *request, lease *held) (rec driver.Record, res *Result, told bool, err error) {
	marker := markerOf(lease)
	if marker == nil {
		return rec, nil, false, nil
	}
	r.open = true
	if rec, err = m.read(ctx, r); err != nil {
		return rec, nil, true, err
	}
	fell := rec.Attempt != marker.Attempt && !counts(&rec, marker)
	if fell || marker.State == driver.StateCompleted && !counts(&rec, marker) {
		m.observe(ctx, r, telemetry.Event{Type: telemetry.EventMarked, Attempt: marker.Attempt, State: marker.State})
	}
	if fell { // it is missing, or older than the marked attempt
		if rec, err = m.restoreMarked(ctx, r, lease, marker, marker.Attempt, driver.Replaced{}); err != nil {
			return rec, nil, true, err
		}
		if marker.State == driver.StateUnknown && rec.Attempt != marker.Attempt && idle(&rec) && !counts(&rec, marker) {
			if rec, err = m.restoreUnderLease(ctx, r, lease, marker, &rec); err != nil {
				return rec, nil, true, err
			}
		}
	}
	switch {
	case follows(&rec, marker):
		return rec, nil, false, nil
	case rec.State.Open(): // and the marker says completed
		settled, err := m.settleAs(ctx, r, lease, &rec, Applied(Response{Omitted: true}), byMarker, nil)
		return settled.Record, nil, err != nil, err
	}
	// Only the marker knows, because the store cannot write the record anew.
	rec = marker.Record()
	if res, err = r.judge(&rec); res == nil && err == nil { // unknown, and there is no record to settle
		err = refuse(CodeOutcomeUnknown, errors.New("idem: only a marker knows of the attempt"))
	}
	return rec, res, true, err
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
// returns the record that the store has then. The store keeps a record if its attempt is not earlier than
// the attempt as, or has the fence of another domain and is not the one to be replaced.
func (m *lockMode) restoreMarked(ctx context.Context, r *request, lease *held, marker *driver.Marker, as driver.Attempt, replaced driver.Replaced) (driver.Record, error) {
	s := driver.Settlement{Attempt: as, ID: as.Nonce, State: marker.State, ResultTTL: r.Policy.ResultTTL, KeyTTL: r.Policy.KeyTTL,
		LeaseTrusted: lease.Err() == nil, Decision: byMarker}
	marked := marker.Record()
	repair := repairOf(&marked)
	repair.Replaced = replaced
	s.Repair = &repair
	if marker.State == driver.StateCompleted {
		s.Response = &driver.Response{Omitted: true}
	}
	res, err := m.callSettle(ctx, r, &s, m.cfg.settleTimeout, m.store.Settle)
	if err != nil {
		return res.Record, storeRefusal(err)
	}
	return res.Record, nil
}

// restoreUnderLease writes a marked attempt in doubt anew, as the next attempt and under the
// fence of our lease. The store has kept rec, which has no open attempt, because an Abort left its
// own fence there. That fence is above the marked one, and then ours is above both, or it is of
// another domain, and then the store replaces exactly rec. Such a record would otherwise hide the
// attempt from the resolver and from operators until it expires. A later lease has to settle an
// outcome in doubt, because it shuts out everyone before it.
func (m *lockMode) restoreUnderLease(ctx context.Context, r *request, lease *held, marker *driver.Marker, rec *driver.Record) (driver.Record, error) {
	as := driver.Attempt{Number: marker.Attempt.Number + 1, Fence: lease.Fence(), Nonce: lease.nonce}
	restored, err := m.restoreMarked(ctx, r, lease, marker, as, driver.Replaced{State: rec.State, Attempt: rec.Attempt})
	if err == nil && restored.Attempt == as && restored.State.Open() {
		err = refuse(CodeUnavailable, fmt.Errorf("%w: the record was just written anew from a marker", driver.ErrUnavailable))
	}
	return restored, err
}

// idle reports whether a record waits for its next attempt.
func idle(rec *driver.Record) bool {
	return rec.State == driver.StateReleased || rec.State == driver.StateIssued
}

// markerOf is the marker we found in place of the lock, or nil.
func markerOf(lease *held) *driver.Marker {
	if l, ok := lease.Lease.(driver.MarkingLease); ok {
		return l.Marker()
	}
	return nil
}

// beforeMarker reports whether a new attempt began from a record that does not go on from the
// marker. Then the store has fallen back since heed, or a late call has changed an old record.
func beforeMarker(lease *held, b *begun) bool {
	m, was := markerOf(lease), b.repair.Replaced
	return m != nil && (b.record.Attempt.Number <= m.Attempt.Number || !follows(&driver.Record{State: was.State, Attempt: was.Attempt}, m))
}

// mark sets the marker for the release according to the record at the end of the attempt. If that is of
// another attempt although we hold the lock, the store fell back to the time before this one, and the
// marker has what the holder itself knows. If there is no record, the attempt was of a token, and
// there was nothing to keep.
func (run *lockRun) mark(rec *driver.Record) {
	if rec.Attempt != run.settlement.Attempt && !run.lost() {
		rec = &driver.Record{State: run.settlement.State, Kind: run.repair.Kind, Route: run.repair.Route,
			Attempt: run.settlement.Attempt, Fingerprint: run.repair.Fingerprint, Started: run.repair.Started,
			ResultTTL: run.repair.ResultTTL, KeyTTL: run.repair.KeyTTL}
	}
	mark(run.lease, rec)
}
