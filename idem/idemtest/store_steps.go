package idemtest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// begin calls Begin and requires an answer.
func (b *storeBench) begin(req driver.BeginRequest) driver.BeginResult {
	b.Helper()
	res, err := b.s.Begin(b.ctx, b.id, req)
	if err != nil {
		b.Fatalf("Begin(%v, fence %v) = %v, want <nil>", b.id, req.Fence, err)
	}
	return res
}

// begun calls Begin and requires a new attempt.
func (b *storeBench) begun(req driver.BeginRequest) driver.Attempt {
	b.Helper()
	res := b.begin(req)
	a := res.Record.Attempt
	if !res.Begun || res.Record.State != driver.StatePending || a.Fence != req.Fence || a.Nonce != req.Nonce {
		b.Fatalf("Begin(%v, fence %v) = %s, want it begun", b.id, req.Fence, describeBegin(res))
	}
	return a
}

// start begins a new attempt.
func (b *storeBench) start(kind driver.KeyKind) (driver.Attempt, driver.BeginRequest) {
	b.Helper()
	req := b.request(kind)
	return b.begun(req), req
}

// startFor begins a new attempt of a client key on a route with these times to live.
func (b *storeBench) startFor(resultTTL, keyTTL time.Duration) (driver.Attempt, driver.BeginRequest) {
	b.Helper()
	req := b.request(driver.ClientKey)
	req.ResultTTL, req.KeyTTL = resultTTL, keyTTL
	return b.begun(req), req
}

// kept calls Begin and requires that nothing starts or changes.
func (b *storeBench) kept(req driver.BeginRequest, state driver.State) {
	b.Helper()
	b.unchanged(func() {
		b.Helper()
		res := b.begin(req)
		if res.Begun || res.Record.State != state {
			b.Errorf("Begin(%v, fence %v) = %s, want not begun in state %v", b.id, req.Fence, describeBegin(res), state)
		}
		if diff := differ(res.Record, b.get()); diff != "" {
			b.Errorf("Begin(%v, fence %v) returned another record than Get: %s", b.id, req.Fence, diff)
		}
	})
}

// stale calls Begin and requires a refusal with the record, and without any change.
func (b *storeBench) stale(req driver.BeginRequest) {
	b.Helper()
	b.unchanged(func() {
		b.Helper()
		res, err := b.s.Begin(b.ctx, b.id, req)
		if res.Begun || !errors.Is(err, driver.ErrStaleFence) {
			b.Errorf("Begin(%v, fence %v) = %s, %v, want %v", b.id, req.Fence, describeBegin(res), err, driver.ErrStaleFence)
		}
		if diff := differ(res.Record, b.get()); diff != "" {
			b.Errorf("Begin(%v, fence %v) returned another record than Get: %s", b.id, req.Fence, diff)
		}
	})
}

// settle calls Settle and requires this answer.
func (b *storeBench) settle(s driver.Settlement, settled bool) driver.Record {
	b.Helper()
	sent := time.Now()
	res, err := b.s.Settle(b.ctx, b.id, s)
	if err != nil {
		b.Fatalf("Settle(%v, %v) = %v, want <nil>", b.id, s.State, err)
	}
	if res.Settled != settled {
		b.Fatalf("Settle(%v, %v) = settled %v in state %v, want settled %v", b.id, s.State, res.Settled, res.Record.State, settled)
	}
	diff := differ(res.Record, b.get())
	if slow := b.h.Advance == nil && time.Since(sent) >= b.ttl(); diff != "" && !slow { // it may have expired
		b.Errorf("Settle(%v, %v) returned another record than Get: %s", b.id, s.State, diff)
	}
	return res.Record
}

// settleAgain sends a settlement and requires that nothing changes.
func (b *storeBench) settleAgain(s driver.Settlement, settled bool) {
	b.Helper()
	b.unchanged(func() { b.Helper(); b.settle(s, settled) })
}

// abort calls Abort and requires an answer.
func (b *storeBench) abort(req driver.BeginRequest) {
	b.Helper()
	if err := b.s.Abort(b.ctx, b.id, req); err != nil {
		b.Fatalf("Abort(%v, fence %v) = %v, want <nil>", b.id, req.Fence, err)
	}
}

// abortAgain sends an Abort and requires that nothing changes.
func (b *storeBench) abortAgain(req driver.BeginRequest) {
	b.Helper()
	b.unchanged(func() { b.Helper(); b.abort(req) })
}

// issue calls Issue and requires an answer.
func (b *storeBench) issue(ttl time.Duration) driver.Record {
	b.Helper()
	rec, err := b.s.Issue(b.ctx, b.id, ttl)
	if err != nil {
		b.Fatalf("Issue(%v) = %v, want <nil>", b.id, err)
	}
	return rec
}

// get calls Get and requires an answer.
func (b *storeBench) get() driver.Record {
	b.Helper()
	rec, err := b.s.Get(b.ctx, b.id)
	if err != nil {
		b.Fatalf("Get(%v) = %v, want <nil>", b.id, err)
	}
	return rec
}

// in requires a state and an attempt number, and returns the record.
func (b *storeBench) in(state driver.State, number uint32) driver.Record {
	b.Helper()
	rec := b.get()
	if rec.State != state || rec.Attempt.Number != number {
		b.Fatalf("Get(%v) = %v at attempt %d, want %v at attempt %d", b.id, rec.State, rec.Attempt.Number, state, number)
	}
	return rec
}

// unchanged requires the same record before and after f.
func (b *storeBench) unchanged(f func()) {
	b.Helper()
	before := b.get()
	f()
	if diff := differ(b.get(), before); diff != "" {
		b.Errorf("the record of %v was changed: %s", b.id, diff)
	}
}

// open returns the first records of a listing, from as many pages as it takes.
func (b *storeBench) open(q driver.OpenQuery) (rows []driver.OpenRecord) {
	b.Helper()
	for limit := q.Limit; ; {
		page := b.page(q)
		rows = append(rows, page.Records...)
		if page.Next == nil || limit > 0 && len(rows) >= limit {
			return rows
		}
		q.After, q.Limit = page.Next, max(limit-len(rows), 0)
	}
}

// page calls ListOpen and requires an answer within the limit.
func (b *storeBench) page(q driver.OpenQuery) driver.OpenPage {
	b.Helper()
	page, err := b.s.ListOpen(b.ctx, q)
	if err != nil {
		b.Fatalf("ListOpen(%+v) = %v, want <nil>", q, err)
	}
	if q.Limit > 0 && len(page.Records) > q.Limit {
		b.Fatalf("ListOpen(%+v) = %d records", q, len(page.Records))
	}
	if page.Next != nil && q.After != nil && page.Next.Compare(*q.After) <= 0 {
		b.Fatalf("ListOpen(%+v) goes on at %+v, which is not after it", q, *page.Next)
	}
	return page
}

// isOpen requires the record to be listed as open, or not.
func (b *storeBench) isOpen(want bool) {
	b.Helper()
	got := slices.ContainsFunc(b.open(driver.OpenQuery{}), func(r driver.OpenRecord) bool { return r.ID == b.id })
	if got != want {
		b.Errorf("ListOpen() lists %v: %v, want %v", b.id, got, want)
	}
}

func describeBegin(res driver.BeginResult) string {
	return fmt.Sprintf("begun %v in state %v at attempt %d", res.Begun, res.Record.State, res.Record.Attempt.Number)
}

// differ describes the difference of two records, or returns "".
func differ(got, want driver.Record) string {
	type field struct {
		name      string
		got, want any
	}
	for _, f := range []field{
		{"State", got.State, want.State}, {"Kind", got.Kind, want.Kind}, {"Route", got.Route, want.Route},
		{"Attempt", got.Attempt, want.Attempt}, {"Fingerprint", got.Fingerprint, want.Fingerprint},
		{"Decision", got.Decision, want.Decision},
		{"Created", nanos(got.Created), nanos(want.Created)}, {"Started", nanos(got.Started), nanos(want.Started)},
		{"Settled", nanos(got.Settled), nanos(want.Settled)},
		{"ResultExpires", nanos(got.ResultExpires), nanos(want.ResultExpires)},
		{"KeyExpires", nanos(got.KeyExpires), nanos(want.KeyExpires)},
		{"TokenExpires", nanos(got.TokenExpires), nanos(want.TokenExpires)},
		{"ResultTTL", got.ResultTTL, want.ResultTTL}, {"KeyTTL", got.KeyTTL, want.KeyTTL},
		{"a damaged response", got.ResponseErr != nil, want.ResponseErr != nil},
	} {
		if f.got != f.want {
			return fmt.Sprintf("%s = %v, want %v", f.name, f.got, f.want)
		}
	}
	if !sameResponse(got.Response, want.Response) {
		return fmt.Sprintf("Response = %s, want %s", describeResponse(got.Response), describeResponse(want.Response))
	}
	return ""
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// sameResponse takes empty maps and bodies for nil ones.
func sameResponse(a, b *driver.Response) bool {
	if a == nil || b == nil {
		return a == b
	}
	same := func(x, y map[string][]string) bool { return maps.EqualFunc(x, y, slices.Equal) }
	return a.Status == b.Status && a.Omitted == b.Omitted && a.Span == b.Span && bytes.Equal(a.Body, b.Body) &&
		same(a.Header, b.Header) && same(a.Trailer, b.Trailer)
}

func describeResponse(r *driver.Response) string {
	if r == nil {
		return "none"
	}
	return fmt.Sprintf("%d %v %v omitted %v, body of %d bytes, span %x", r.Status, r.Header, r.Trailer, r.Omitted, len(r.Body), r.Span)
}
