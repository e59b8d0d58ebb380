package idemtest

import (
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

const (
	longResult = 15 * 24 * time.Hour
	longKey    = 30 * 24 * time.Hour
)

// storeRememberTests are about how long a route keeps results and remembers keys. A settlement
// by somebody who does not know the route must not forget the key earlier.
var storeRememberTests = []storeTest{
	{name: "an open record has the times of its route", run: func(b *storeBench) {
		for _, kind := range []driver.KeyKind{driver.ClientKey, driver.IssuedToken} {
			b.id = randomKeyID()
			if kind == driver.IssuedToken {
				b.issue(time.Hour)
			}
			req := b.request(kind)
			req.ResultTTL, req.KeyTTL = longResult, longKey
			a := b.begun(req)
			b.remembers(longResult, longKey)
			b.unchanged(func() { b.begin(req) })
			b.settle(settlement(a, driver.StateUnknown), true)
			b.remembers(longResult, longKey)
			b.settle(decision(a, driver.StateUnknown), true)
			b.remembers(longResult, longKey)
			if rows := b.open(driver.OpenQuery{}); len(rows) > 0 {
				for _, row := range rows {
					if row.ID == b.id && (row.Record.ResultTTL != longResult || row.Record.KeyTTL != longKey) {
						b.Errorf("ListOpen() = times to live %v and %v, want %v and %v", row.Record.ResultTTL, row.Record.KeyTTL, longResult, longKey)
					}
				}
			}
			b.settle(decision(a, driver.StateCompleted), true)
			b.remembers(0, 0)
		}
	}},
	{name: "a shorter settlement keeps the times of the record", run: func(b *storeBench) {
		for _, from := range []driver.State{driver.StatePending, driver.StateUnknown} {
			for _, short := range []time.Duration{0, time.Minute} {
				for _, size := range []int{10, 4096} {
					a := b.longAttempt(from)
					s := decision(a, driver.StateCompleted)
					s.ResultTTL, s.KeyTTL, s.Response.Body = short, short, make([]byte, size)
					b.ends(b.settle(s, true), longResult, longKey)
					b.settleAgain(s, true)

					a = b.longAttempt(from)
					s = decision(a, driver.StateReleased)
					s.ResultTTL, s.KeyTTL = short, short
					b.ends(b.settle(s, true), 0, longKey)
					b.settleAgain(s, true)
				}
			}
		}
	}},
	{name: "a longer settlement counts", run: func(b *storeBench) {
		a, _ := b.startFor(time.Hour, 2*time.Hour)
		s := decision(a, driver.StateUnknown)
		s.ResultTTL, s.KeyTTL = longResult, longKey
		b.settle(s, true)
		b.remembers(longResult, longKey)
		b.ends(b.settle(decision(a, driver.StateCompleted), true), longResult, longKey)
	}},
	{name: "without known times a settlement has its own", run: func(b *storeBench) {
		a, _ := b.startFor(0, 0)
		b.remembers(0, 0)
		b.ends(b.settle(settlement(a, driver.StateCompleted), true), time.Hour, 2*time.Hour)
	}},
	{name: "a result may have the longer of both, and its key no less", run: func(b *storeBench) {
		a, _ := b.startFor(longKey, longResult)
		b.ends(b.settle(settlement(a, driver.StateCompleted), true), longKey, longKey)
	}},
	{name: "the times pass", moves: true, run: func(b *storeBench) {
		a := b.longAttempt(driver.StateUnknown)
		b.settle(decision(a, driver.StateCompleted), true)
		b.h.Advance(longResult - time.Millisecond)
		b.in(driver.StateCompleted, 1)
		b.h.Advance(time.Millisecond)
		b.in(driver.StateExpired, 1)
		b.h.Advance(longKey - longResult - time.Millisecond)
		b.in(driver.StateExpired, 1)
		b.h.Advance(time.Millisecond)
		b.in(driver.StateNone, 0)
	}},
	{name: "a later attempt from doubt does not shorten them", run: func(b *storeBench) {
		for _, from := range []driver.State{driver.StatePending, driver.StateUnknown} {
			a := b.longAttempt(from)
			req := b.rerun(driver.ClientKey, a)
			a = b.begun(req)
			b.remembers(longResult, longKey)
			b.ends(b.settle(settlement(a, driver.StateCompleted), true), longResult, longKey)
		}
	}},
	{name: "an undone attempt from doubt does not shorten them", run: func(b *storeBench) {
		for _, from := range []driver.State{driver.StatePending, driver.StateUnknown} {
			for _, arrived := range []bool{true, false} {
				req := b.rerun(driver.ClientKey, b.longAttempt(from))
				if arrived {
					b.begun(req)
				}
				b.abort(req)
				b.remembers(longResult, longKey)
			}
		}
	}},
	{name: "an attempt after a release does not forget the key earlier", moves: true, run: func(b *storeBench) {
		b.settle(settlement(b.longAttempt(driver.StatePending), driver.StateReleased), true)
		until := b.get().KeyExpires
		b.h.Advance(10 * 24 * time.Hour)
		a, _ := b.startFor(time.Minute, time.Minute)
		s := settlement(a, driver.StateCompleted)
		s.ResultTTL, s.KeyTTL = time.Minute, time.Minute
		if rec := b.settle(s, true); rec.KeyExpires.Before(until) || rec.KeyExpires.After(until.Add(storeTimeout)) || rec.ResultExpires.Sub(rec.Settled) != time.Minute {
			b.Errorf("Settle(%v) = result until %v, key until %v, want the key until %v", b.id, rec.ResultExpires, rec.KeyExpires, until)
		}
	}},
	{name: "a missing record is written anew with them", run: func(b *storeBench) {
		for _, kind := range []driver.KeyKind{driver.ClientKey, driver.IssuedToken} {
			for _, state := range []driver.State{driver.StateCompleted, driver.StateUnknown} {
				b.id = randomKeyID()
				s, _ := b.restoring(kind, state)
				s.Repair.ResultTTL, s.Repair.KeyTTL = longResult, longKey
				b.written(s)
			}
		}
	}},
	{name: "a repair keeps those of the record that it replaces", run: func(b *storeBench) {
		for _, from := range []driver.State{driver.StatePending, driver.StateUnknown} {
			for _, state := range []driver.State{driver.StateCompleted, driver.StateUnknown} {
				b.longAttempt(from)
				b.written(b.fellBack(driver.ClientKey, 2, state))
			}
		}
		b.settle(settlement(b.longAttempt(driver.StatePending), driver.StateReleased), true)
		if rec := b.settle(b.fellBack(driver.ClientKey, 2, driver.StateCompleted), true); rec.KeyExpires.Sub(rec.Settled) < longKey-storeTimeout {
			b.Errorf("Settle(%v) = key for %v, want about %v", b.id, rec.KeyExpires.Sub(rec.Settled), longKey)
		}
	}},
}

// longAttempt makes a key with a first attempt in doubt, on a route that remembers keys for long.
func (b *storeBench) longAttempt(in driver.State) driver.Attempt {
	b.Helper()
	b.id = randomKeyID()
	a, _ := b.startFor(longResult, longKey)
	if in == driver.StateUnknown {
		b.settle(settlement(a, driver.StateUnknown), true)
	}
	return a
}

// remembers requires the record to have these times to live.
func (b *storeBench) remembers(resultTTL, keyTTL time.Duration) {
	b.Helper()
	if rec := b.get(); rec.ResultTTL != resultTTL || rec.KeyTTL != keyTTL {
		b.Errorf("Get(%v) = %v with times to live %v and %v, want %v and %v", b.id, rec.State, rec.ResultTTL, rec.KeyTTL, resultTTL, keyTTL)
	}
}

// ends requires a settled record to end after these times. 0 means that it has no such end.
func (b *storeBench) ends(rec driver.Record, resultTTL, keyTTL time.Duration) {
	b.Helper()
	after := func(end time.Time) time.Duration {
		if end.IsZero() {
			return 0
		}
		return end.Sub(rec.Settled)
	}
	if got := [2]time.Duration{after(rec.ResultExpires), after(rec.KeyExpires)}; got != [2]time.Duration{resultTTL, keyTTL} {
		b.Errorf("Settle(%v, %v) = result and key for %v, want %v and %v", b.id, rec.State, got, resultTTL, keyTTL)
	}
}

// written sends a settlement that writes a record anew. It has to keep the long times.
func (b *storeBench) written(s driver.Settlement) {
	b.Helper()
	rec := b.repaired(s, true)
	if s.State == driver.StateUnknown {
		b.remembers(longResult, longKey)
		rec = b.settle(decision(s.Attempt, driver.StateCompleted), true)
	}
	b.ends(rec, longResult, longKey)
}
