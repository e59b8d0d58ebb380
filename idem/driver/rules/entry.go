// Package rules decides what a token store does with a record. It is the tables in the
// comments of [driver.Store] as functions without effects. A store reads an entry, asks a
// function here what to do, and writes the answer, all in one step of its own.
//
// The stores in memory and in SQL use it, and so can the store of a third party. The store in Redis
// decides in its scripts.
package rules

import (
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Entry is a record and the data that Settle and Abort need beside it. The functions of this
// package never change an entry, and their results share data with it.
type Entry struct {
	Record     driver.Record // without its response
	Response   []byte        // packed, nil without a response
	Settlement driver.Nonce  // ID of the standing settlement, zero without one
	Repaired   bool          // the settlement replaced an older or missing record
	Before     *Entry        // the record before a pending record, nil for a new key
}

// At returns the entry as it is at time now, and nil if its time is over. An expired result
// is gone.
func (e *Entry) At(now time.Time) *Entry {
	if e == nil {
		return nil
	}
	r := &e.Record
	switch {
	case r.State == driver.StateCompleted && over(r.ResultExpires, now):
		expired := *e
		expired.Record.State, expired.Response = driver.StateExpired, nil
		return expired.At(now)
	case r.State == driver.StateIssued && over(r.TokenExpires, now),
		(r.State == driver.StateReleased || r.State == driver.StateExpired) && over(r.KeyExpires, now):
		return nil
	}
	return e
}

func over(end, now time.Time) bool { return !end.IsZero() && !end.After(now) }

// Deadline is the time at which the entry changes by itself. Zero means never.
func (e *Entry) Deadline() time.Time {
	r := &e.Record
	switch r.State {
	case driver.StateIssued:
		return r.TokenExpires
	case driver.StateCompleted:
		return r.ResultExpires
	case driver.StateReleased, driver.StateExpired:
		return r.KeyExpires
	}
	return time.Time{}
}

// Copy returns the record with its response, or with the reason why that cannot be read. The
// copy of a nil entry is a record in StateNone.
func (e *Entry) Copy() driver.Record {
	if e == nil {
		return driver.Record{}
	}
	r := e.Record
	if e.Response != nil {
		resp := new(driver.Response)
		if r.ResponseErr = resp.UnmarshalBinary(e.Response); r.ResponseErr == nil {
			r.Response = resp
		}
	}
	return r
}

// idle reports whether r waits for its next attempt.
func idle(r *driver.Record) bool {
	return r.State == driver.StateIssued || r.State == driver.StateReleased
}
