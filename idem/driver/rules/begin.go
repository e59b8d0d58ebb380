package rules

import (
	"cmp"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Issue returns the entry of a token that expires after ttl.
func Issue(ttl time.Duration, now time.Time) *Entry {
	return &Entry{Record: driver.Record{
		State: driver.StateIssued, Kind: driver.IssuedToken, Created: now, TokenExpires: now.Add(ttl),
	}}
}

// Begin says what a Begin does with entry e, which is as [Entry.At] returned it. If write is
// not nil the store replaces e by it. The error wraps driver.ErrStaleFence.
func Begin(e *Entry, req driver.BeginRequest, now time.Time) (write *Entry, res driver.BeginResult, err error) {
	after := e
	switch {
	case e == nil && (req.Kind != driver.ClientKey || req.RunAgainFrom != nil):
	case e == nil:
		write = Pending(nil, req, now)
		after, res.Begun = write, true
	case e.began(req):
		res.Begun = true
	case stale(&e.Record, req.Fence):
		err = fmt.Errorf("begin with fence %v after %v: %w", req.Fence, e.Record.Attempt.Fence, driver.ErrStaleFence)
	case free(&e.Record, req) || reruns(&e.Record, req) && e.Record.Fingerprint == req.Fingerprint:
		write = Pending(e, req, now)
		after, res.Begun = write, true
	}
	res.Record = after.Copy()
	if res.Begun && after.Before != nil {
		res.Replaced = driver.Replaced{State: after.Before.Record.State, Attempt: after.Before.Record.Attempt}
	}
	return write, res, err
}

// Pending returns the entry of a new attempt. It follows before, or nil.
func Pending(before *Entry, req driver.BeginRequest, now time.Time) *Entry {
	r := driver.Record{
		State: driver.StatePending, Kind: req.Kind, Route: req.Route, Fingerprint: req.Fingerprint,
		Attempt: driver.Attempt{Number: 1, Fence: req.Fence, Nonce: req.Nonce}, Created: now, Started: now,
		ResultTTL: max(req.ResultTTL, 0), KeyTTL: max(req.KeyTTL, 0),
	}
	if before == nil {
		return &Entry{Record: r}
	}
	was := *before
	was.Before, was.Response = nil, nil
	r.Created, r.TokenExpires = was.Record.Created, was.Record.TokenExpires
	r.Attempt.Number = was.Record.Attempt.Number + 1
	Remember(&r, &was.Record, now)
	return &Entry{Record: r, Before: &was}
}

// Remember makes the times to live of r no shorter than those that a record in its place
// promised. A released key has an end, which the next attempt does not bring forward.
func Remember(r, was *driver.Record, now time.Time) {
	if was.State.Open() {
		r.ResultTTL, r.KeyTTL = max(r.ResultTTL, was.ResultTTL), max(r.KeyTTL, was.KeyTTL)
	}
	if was.State == driver.StateReleased {
		r.KeyTTL = max(r.KeyTTL, was.KeyExpires.Sub(now))
	}
}

// Abort says what an Abort does with entry e, which is as [Entry.At] returned it. If the
// result is not nil the store replaces e by it.
func Abort(e *Entry, req driver.BeginRequest, now time.Time) (write *Entry) {
	switch {
	case e == nil:
		if req.RunAgainFrom == nil {
			return fenced(nil, req, now)
		}
	case e.began(req) && e.Before != nil && e.Before.Record.State.Open():
		return unknown(e, e.Record.Attempt, now)
	case e.began(req):
		return fenced(e.Before, req, now)
	case stale(&e.Record, req.Fence): // the store refuses this Begin anyway
	case reruns(&e.Record, req):
		return unknown(e, driver.Attempt{Number: e.Record.Attempt.Number + 1, Fence: req.Fence, Nonce: req.Nonce}, now)
	case free(&e.Record, req):
		return fenced(e, req, now)
	}
	return nil
}

// unknown returns e as an unknown attempt without a response. It stays bound to its request.
func unknown(e *Entry, a driver.Attempt, now time.Time) *Entry {
	r := e.Record
	r.State, r.Attempt, r.Settled, r.Decision = driver.StateUnknown, a, now, driver.Decision{}
	return &Entry{Record: r}
}

// fenced returns e with the fence of the request, so that the store refuses the Begin of the
// request. Without an entry it is a released record. An unknown token stays without a record,
// because the record would make it valid.
func fenced(e *Entry, req driver.BeginRequest, now time.Time) *Entry {
	if e == nil {
		if req.Kind != driver.ClientKey {
			return nil
		}
		e = &Entry{Record: driver.Record{State: driver.StateReleased, Created: now, Settled: now}}
	}
	left := *e
	r := &left.Record
	r.Attempt.Fence, r.Attempt.Nonce = req.Fence, req.Nonce
	if until := now.Add(keyTTLOf(req.KeyTTL)); r.State == driver.StateReleased && until.After(r.KeyExpires) {
		r.KeyExpires = until
	}
	return &left
}

// began reports whether the entry is the pending attempt that req asks for.
func (e *Entry) began(req driver.BeginRequest) bool {
	a := e.Record.Attempt
	return e.Record.State == driver.StatePending && a.Fence == req.Fence && a.Nonce == req.Nonce
}

// free reports whether the next attempt may begin from r.
func free(r *driver.Record, req driver.BeginRequest) bool {
	return req.RunAgainFrom == nil && idle(r) && r.Kind == req.Kind
}

// reruns reports whether r is the open record that a request starts over from.
func reruns(r *driver.Record, req driver.BeginRequest) bool {
	return req.RunAgainFrom != nil && r.State.Open() && r.Kind == req.Kind && r.Attempt == *req.RunAgainFrom && r.Attempt.Fence != req.Fence
}

// stale reports whether a Begin under fence f comes too late.
func stale(r *driver.Record, f driver.Fence) bool {
	stored := r.Attempt.Fence
	return f.Before(stored) || f == stored && !r.State.Open()
}

// keyTTLOf is d, or the default.
func keyTTLOf(d time.Duration) time.Duration { return cmp.Or(max(d, 0), driver.DefaultKeyTTL) }
