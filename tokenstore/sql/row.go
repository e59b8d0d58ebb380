package sqlstore

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
)

// recordForm is the version of the columns of a record. A build leaves rows of later
// versions as they are.
const recordForm = 1

// Limits of the columns, in bytes. The limits in package idem are lower or equal.
const (
	maxText   = 255 // domain, route and author
	maxReason = 1024
)

// row is a record as its table has it, without its key and its rev. The migrations tell what
// the columns mean. The JSON form is that of the column previous.
type row struct {
	Form, State, Kind                       int64
	Route, Fingerprint                      []byte
	Attempt                                 int64
	Domain                                  []byte
	Fence                                   int64
	Nonce, Settlement                       []byte
	Repaired                                int64
	Created, Started, Settled               int64
	ResultExpires, KeyExpires, TokenExpires int64
	DecidedBy, DecidedReason                []byte
	ResultTTL, KeyTTL                       int64  `json:",omitzero"`
	Response                                []byte `json:"-"`
	Previous                                []byte `json:"-"`
	OpenSince, Expires                      *int64 `json:"-"`
}

// columns are those of row, in its order.
var columns = strings.Fields(`form state kind route fingerprint attempt domain fence nonce settlement repaired
	created started settled result_expires key_expires token_expires decided_by decided_reason
	result_ttl key_ttl response previous open_since expires`)

// values are the parameters of an INSERT or UPDATE of all columns.
func (r *row) values() []any {
	return []any{
		r.Form, r.State, r.Kind, r.Route, r.Fingerprint, r.Attempt, r.Domain, r.Fence, r.Nonce, r.Settlement, r.Repaired,
		r.Created, r.Started, r.Settled, r.ResultExpires, r.KeyExpires, r.TokenExpires, r.DecidedBy, r.DecidedReason,
		r.ResultTTL, r.KeyTTL, r.Response, r.Previous, r.OpenSince, r.Expires,
	}
}

// found is the answer of a SELECT of all columns for one key. Everything but now is NULL
// without a record.
type found struct {
	row
	now, rev int64
	there    bool
	answered bool // it has a response; drivers differ in what an empty one looks like
}

// targets are for the columns now, rev, whether there is a response, and those of row.
func (f *found) targets() []any {
	r := &f.row
	number := func(to *int64) any { return &nullable{to} }
	return []any{
		&f.now, &presence{f}, &f.answered, number(&r.Form), number(&r.State), number(&r.Kind), &r.Route, &r.Fingerprint, number(&r.Attempt),
		&r.Domain, number(&r.Fence), &r.Nonce, &r.Settlement, number(&r.Repaired),
		number(&r.Created), number(&r.Started), number(&r.Settled), number(&r.ResultExpires), number(&r.KeyExpires),
		number(&r.TokenExpires), &r.DecidedBy, &r.DecidedReason, number(&r.ResultTTL), number(&r.KeyTTL), &r.Response, &r.Previous, &r.OpenSince, &r.Expires,
	}
}

// nullable reads a number, and 0 for NULL.
type nullable struct{ to *int64 }

// Scan implements [sql.Scanner].
func (n *nullable) Scan(v any) error {
	if v == nil { // most are, and a NullInt64 would be an allocation for each
		*n.to = 0
		return nil
	}
	var got sql.NullInt64
	err := got.Scan(v)
	*n.to = got.Int64
	return err
}

// presence reads the rev, which is NULL without a record.
type presence struct{ f *found }

// Scan implements [sql.Scanner].
func (p *presence) Scan(v any) error {
	var got sql.NullInt64
	err := got.Scan(v)
	p.f.rev, p.f.there = got.Int64, got.Valid
	return err
}

// unpack returns the entry of the row. The error wraps driver.ErrNewerRecord or
// driver.ErrCorruptRecord.
func (f *found) unpack() (*rules.Entry, error) {
	r := f.row
	if r.Response = nil; f.answered {
		r.Response = append([]byte{}, f.Response...)
	}
	return r.unpack()
}

// durationOf is the duration of a column. A damaged one may hold any number.
func durationOf(us int64) time.Duration {
	return time.Duration(min(max(us, 0), math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}

// newRev returns a rev that no earlier write of any record has had, as good as certainly.
// It is positive, and another 1 can be added.
func newRev() int64 { return rand.Int64N(1 << 62) } //nolint:gosec // nothing is kept secret by it

// micros is t in microseconds, and 0 for the zero time.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func timeOf(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// wholeMicros is d in microseconds, rounded up, so that no record ends early. It is 0 for less.
func wholeMicros(d time.Duration) int64 {
	us := d.Microseconds()
	if d > time.Duration(us)*time.Microsecond {
		us++
	}
	return max(us, 0)
}

// text is s as bytes that are not NULL.
func text(s string) []byte { return append([]byte{}, s...) }

// pack returns the row of an entry.
func pack(e *rules.Entry) (*row, error) {
	rec := &e.Record
	r := &row{
		Form: recordForm, State: int64(rec.State), Kind: int64(rec.Kind), Route: text(rec.Route),
		Fingerprint: packFingerprint(rec.Fingerprint), Attempt: int64(rec.Attempt.Number),
		Domain: text(rec.Attempt.Fence.Domain), Fence: int64(rec.Attempt.Fence.Token), // all 64 bits come back
		Nonce: rec.Attempt.Nonce[:], Settlement: e.Settlement[:],
		Created: micros(rec.Created), Started: micros(rec.Started), Settled: micros(rec.Settled),
		ResultExpires: micros(rec.ResultExpires), KeyExpires: micros(rec.KeyExpires), TokenExpires: micros(rec.TokenExpires),
		DecidedBy: text(rec.Decision.By), DecidedReason: text(rec.Decision.Reason), Response: e.Response,
	}
	if e.Repaired {
		r.Repaired = 1
	}
	if rec.State.Open() {
		r.OpenSince, r.ResultTTL, r.KeyTTL = &r.Started, wholeMicros(rec.ResultTTL), wholeMicros(rec.KeyTTL)
	}
	if end := e.Deadline(); !end.IsZero() {
		us := micros(end)
		r.Expires = &us
	}
	if e.Before == nil {
		return r, nil
	}
	before, err := pack(e.Before)
	if err != nil {
		return nil, err
	}
	r.Previous, err = json.Marshal(before)
	return r, err
}

func packFingerprint(f driver.Fingerprint) []byte { return append([]byte{f.Version}, f.Sum[:]...) }

// unpack returns the entry of a row. The error wraps driver.ErrNewerRecord or
// driver.ErrCorruptRecord.
func (r *row) unpack() (*rules.Entry, error) {
	e := &rules.Entry{Response: r.Response, Repaired: r.Repaired != 0}
	rec := &e.Record
	switch {
	case r.Form > recordForm:
		return nil, fmt.Errorf("%w: record of form %d", driver.ErrNewerRecord, r.Form)
	case r.Form != recordForm, r.State < int64(driver.StateIssued), r.State > int64(driver.StateExpired),
		r.Kind < int64(driver.ClientKey), r.Kind > int64(driver.IssuedToken), r.Attempt < 0, r.Attempt > math.MaxUint32,
		len(r.Nonce) != len(rec.Attempt.Nonce), len(r.Settlement) != len(e.Settlement), len(r.Fingerprint) != 1+len(rec.Fingerprint.Sum):
		return nil, fmt.Errorf("%w: its columns do not fit together", driver.ErrCorruptRecord)
	}
	*rec = driver.Record{
		State: driver.State(r.State), Kind: driver.KeyKind(r.Kind), Route: string(r.Route),
		Attempt: driver.Attempt{Number: uint32(r.Attempt), Fence: driver.Fence{Domain: string(r.Domain), Token: uint64(r.Fence)}},
		Created: timeOf(r.Created), Started: timeOf(r.Started), Settled: timeOf(r.Settled),
		ResultExpires: timeOf(r.ResultExpires), KeyExpires: timeOf(r.KeyExpires), TokenExpires: timeOf(r.TokenExpires),
		Decision: driver.Decision{By: string(r.DecidedBy), Reason: string(r.DecidedReason)},
	}
	if rec.State.Open() {
		rec.ResultTTL, rec.KeyTTL = durationOf(r.ResultTTL), durationOf(r.KeyTTL)
	}
	copy(rec.Attempt.Nonce[:], r.Nonce)
	copy(e.Settlement[:], r.Settlement)
	rec.Fingerprint.Version = r.Fingerprint[0]
	copy(rec.Fingerprint.Sum[:], r.Fingerprint[1:])
	if r.Previous == nil {
		return e, nil
	}
	var before row
	err := json.Unmarshal(r.Previous, &before)
	if err == nil {
		e.Before, err = before.unpack()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the record that it replaced cannot be read", driver.ErrCorruptRecord)
	}
	return e, nil
}
