package rules

import (
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Settle says what a Settle does with entry e, which is as [Entry.At] returned it. If write is
// not nil the store replaces e by it. The error wraps driver.ErrResponseInvalid.
func Settle(e *Entry, st *driver.Settlement, now time.Time) (write *Entry, res driver.SettleResult, err error) {
	own := e != nil && e.Record.Attempt == st.Attempt
	switch {
	case own && e.Settlement == st.ID && stands(&e.Record, st.State):
		res.Settled, res.Repaired = true, e.Repaired
	case own && e.Record.State.Open():
		return settle(e, st, now, false)
	case own || !repairs(e, st):
	case e == nil && st.State == driver.StateReleased && st.Repair.Kind == driver.IssuedToken:
		// The expiry of the token went with its record. The token stays unknown, so no
		// attempt runs under it again, which is what the settlement wants.
		res.Settled = true
	default:
		return settle(restored(e, st, now), st, now, true)
	}
	res.Record = e.Copy()
	return nil, res, nil
}

// settle returns e, whose attempt is open, with st applied.
func settle(e *Entry, st *driver.Settlement, now time.Time, repair bool) (write *Entry, res driver.SettleResult, err error) {
	var response []byte
	if st.Response != nil && st.State != driver.StateReleased {
		if response, err = st.Response.AppendBinary(nil); err != nil {
			return nil, res, err
		}
	}
	write = &Entry{Record: e.Record, Response: response, Settlement: st.ID, Repaired: repair}
	r := &write.Record
	r.State, r.Settled, r.Decision = st.State, now, st.Decision
	resultTTL, keyTTL := Longest(r, st)
	r.ResultTTL, r.KeyTTL = 0, 0
	switch {
	case st.State == driver.StateUnknown:
		r.ResultTTL, r.KeyTTL = resultTTL, keyTTL
	case st.State == driver.StateCompleted:
		r.ResultExpires, r.KeyExpires = now.Add(resultTTL), now.Add(max(keyTTL, resultTTL))
	case st.State == driver.StateReleased && r.Kind == driver.IssuedToken:
		r.State = driver.StateIssued
		if r.TokenExpires.IsZero() {
			r.TokenExpires = now // a repair made this record, and its expiry had been lost
		}
	case st.State == driver.StateReleased:
		r.KeyExpires = now.Add(keyTTL)
	}
	res.Settled, res.Repaired = true, repair
	if left := write.At(now); left != nil { // nil: its time is over already
		res.Record = left.Record
		if left.Response != nil {
			res.Record.Response = st.Response
		}
	}
	return write, res, nil
}

// Longest returns the times to live that a settlement of the open record r keeps. Its author may
// not know the route, and the record does.
func Longest(r *driver.Record, st *driver.Settlement) (resultTTL, keyTTL time.Duration) {
	resultTTL, keyTTL = max(st.ResultTTL, r.ResultTTL), max(st.KeyTTL, r.KeyTTL)
	if st.State != driver.StateUnknown { // which does not end
		keyTTL = max(keyTTLOf(st.KeyTTL), keyTTL)
	}
	if re := st.Repair; re != nil {
		resultTTL, keyTTL = max(resultTTL, re.ResultTTL), max(keyTTL, re.KeyTTL)
	}
	return resultTTL, keyTTL
}

// repairs reports whether a settlement may replace e, which is missing or belongs
// to another attempt.
func repairs(e *Entry, st *driver.Settlement) bool {
	re := st.Repair
	if re == nil || st.State == driver.StateReleased && !st.LeaseTrusted {
		return false
	}
	if e == nil {
		return true
	}
	r := &e.Record
	stored, own := r.Attempt, st.Attempt
	switch {
	case r.Kind != re.Kind || !idle(r) && !r.State.Open():
		return false
	case stored.Fence.Domain == "":
		return r.State == driver.StateIssued
	case stored.Fence.Domain != own.Fence.Domain:
		return re.Replaced == driver.Replaced{State: r.State, Attempt: stored}
	}
	return stored.Fence.Before(own.Fence) && (idle(r) || stored.Number < own.Number)
}

// restored returns the open entry of the attempt that st settles. It will replace e,
// which may be nil.
func restored(e *Entry, st *driver.Settlement, now time.Time) *Entry {
	re := st.Repair
	r := driver.Record{
		State: driver.StatePending, Kind: re.Kind, Route: re.Route, Fingerprint: re.Fingerprint,
		Attempt: st.Attempt, Created: now, Started: re.Started,
	}
	if e != nil {
		r.Created, r.TokenExpires = e.Record.Created, e.Record.TokenExpires
		Remember(&r, &e.Record, now)
	}
	return &Entry{Record: r}
}

// stands reports whether r is the result of a settlement to state.
func stands(r *driver.Record, state driver.State) bool {
	switch state {
	case driver.StateCompleted:
		return r.State == driver.StateCompleted || r.State == driver.StateExpired
	case driver.StateReleased:
		return idle(r)
	}
	return r.State == state
}
