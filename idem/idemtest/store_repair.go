package idemtest

import (
	"bytes"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// storeRepairTests are about a store that fell back. A promoted replica that was stale has the
// record from before the attempt.
var storeRepairTests = []storeTest{
	{name: "an issued token that was never used", run: func(b *storeBench) {
		for _, state := range settledStates {
			for _, trusted := range []bool{true, false} {
				b.id = randomKeyID()
				issued := b.issue(time.Hour)
				s := b.fellBack(driver.IssuedToken, 1, state)
				s.LeaseTrusted = trusted
				if state == driver.StateReleased && !trusted {
					b.settleAgain(s, false)
					continue
				}
				rec := b.repair(s)
				if !rec.Created.Equal(issued.Created) || !rec.TokenExpires.Equal(issued.TokenExpires) {
					b.Errorf("Settle(%v, %v) = created %v, token until %v, want those of the record it replaced: %v, %v",
						b.id, state, rec.Created, rec.TokenExpires, issued.Created, issued.TokenExpires)
				}
			}
		}
	}},
	{name: "an earlier attempt that was released", run: func(b *storeBench) {
		for _, kind := range []driver.KeyKind{driver.ClientKey, driver.IssuedToken} {
			for _, state := range settledStates {
				b.id = randomKeyID()
				if kind == driver.IssuedToken {
					b.issue(time.Hour)
				}
				first, _ := b.start(kind)
				b.settle(settlement(first, driver.StateReleased), true)
				b.repair(b.fellBack(kind, 2, state))
			}
		}
	}},
	{name: "an earlier attempt that is open", run: func(b *storeBench) {
		for _, open := range []driver.State{driver.StatePending, driver.StateUnknown} {
			for _, state := range settledStates {
				b.id = randomKeyID()
				first, _ := b.start(driver.ClientKey)
				if open == driver.StateUnknown {
					s := settlement(first, open)
					s.Response.Body = bytes.Repeat([]byte("x"), 4096)
					b.settle(s, true)
				}
				b.isOpen(true)
				b.repair(b.fellBack(driver.ClientKey, 2, state))
			}
		}
	}},
	{name: "an unknown attempt keeps its place among the open ones", run: func(b *storeBench) {
		b.start(driver.ClientKey)
		s := b.fellBack(driver.ClientKey, 2, driver.StateUnknown)
		b.repair(s)
		rows := b.open(driver.OpenQuery{})
		if len(rows) != 1 || !rows[0].Record.Started.Equal(s.Repair.Started) {
			b.Fatalf("ListOpen() = %d rows, want one that started at %v", len(rows), s.Repair.Started)
		}
		after := rows[0].Cursor()
		if rows := b.open(driver.OpenQuery{After: &after}); len(rows) != 0 {
			b.Errorf("ListOpen() after the last row = %d rows, want none", len(rows))
		}
	}},
	{name: "a fence is left in it", run: func(b *storeBench) {
		b.issue(time.Hour)
		late := b.request(driver.IssuedToken)
		s := b.fellBack(driver.IssuedToken, 1, driver.StateReleased)
		b.repair(s)
		b.stale(late)
		b.stale(storeRequest(driver.IssuedToken, storeDomain, s.Attempt.Fence.Token))
		if next, _ := b.start(driver.IssuedToken); next.Number != 2 {
			b.Errorf("Begin(%v) = attempt %d, want 2", b.id, next.Number)
		}
	}},
	{name: "never a completed one", run: func(b *storeBench) {
		for _, state := range settledStates {
			b.id = randomKeyID()
			first, _ := b.start(driver.ClientKey)
			b.settle(settlement(first, driver.StateCompleted), true)
			b.settleAgain(b.fellBack(driver.ClientKey, 2, state), false)
		}
	}},
	{name: "never one of another kind", run: func(b *storeBench) {
		b.issue(time.Hour)
		b.settleAgain(b.fellBack(driver.ClientKey, 1, driver.StateCompleted), false)
		b.id = randomKeyID()
		first, _ := b.start(driver.ClientKey)
		b.settle(settlement(first, driver.StateReleased), true)
		b.settleAgain(b.fellBack(driver.IssuedToken, 2, driver.StateCompleted), false)
	}},
	{name: "never one under an equal or a higher fence", run: func(b *storeBench) {
		for _, stored := range []driver.State{driver.StatePending, driver.StateUnknown, driver.StateReleased} {
			for _, ahead := range []uint64{0, 1, 1 << 32} {
				for _, state := range settledStates {
					b.id = randomKeyID()
					later, _ := b.start(driver.ClientKey)
					if stored != driver.StatePending {
						b.settle(settlement(later, stored), true)
					}
					s := b.fellBack(driver.ClientKey, 7, state)
					s.Attempt.Fence.Token = later.Fence.Token - ahead
					b.settleAgain(s, false)
				}
			}
		}
	}},
	{name: "an open one only with a lower number", run: func(b *storeBench) {
		for _, open := range []driver.State{driver.StatePending, driver.StateUnknown} {
			b.id = randomKeyID()
			first, _ := b.start(driver.ClientKey)
			if open == driver.StateUnknown {
				b.settle(settlement(first, open), true)
			}
			b.settleAgain(b.fellBack(driver.ClientKey, 1, driver.StateCompleted), false)
			b.settleAgain(b.fellBack(driver.ClientKey, 0, driver.StateCompleted), false)
		}
	}},
	{name: "of another domain exactly the one that was replaced", run: func(b *storeBench) {
		for _, stored := range []driver.State{driver.StatePending, driver.StateUnknown, driver.StateReleased} {
			b.id = randomKeyID()
			theirs := b.begun(storeRequest(driver.ClientKey, "foreign", 7))
			if stored != driver.StatePending {
				b.settle(settlement(theirs, stored), true)
			}
			s := b.fellBack(driver.ClientKey, 2, driver.StateCompleted)
			b.settleAgain(s, false)
			for name, wrong := range map[string]func(*driver.Replaced){
				"state":  func(r *driver.Replaced) { r.State = driver.StateIssued },
				"number": func(r *driver.Replaced) { r.Attempt.Number++ },
				"fence":  func(r *driver.Replaced) { r.Attempt.Fence.Token-- },
				"domain": func(r *driver.Replaced) { r.Attempt.Fence.Domain = "another" },
				"nonce":  func(r *driver.Replaced) { r.Attempt.Nonce[15] ^= 1 },
			} {
				s.Repair.Replaced = driver.Replaced{State: stored, Attempt: theirs}
				wrong(&s.Repair.Replaced)
				b.Logf("with another %s", name)
				b.settleAgain(s, false)
			}
			s.Repair.Replaced = driver.Replaced{State: stored, Attempt: theirs}
			b.repair(s)
		}
	}},
	{name: "fences are compared to their last bit", run: func(b *storeBench) {
		for _, low := range []uint64{1, 1<<32 - 1, 1 << 53, 1<<53 + 1, 1<<63 - 1, 1<<64 - 2} {
			b.id = randomKeyID()
			first := b.begun(storeRequest(driver.ClientKey, storeDomain, low+1))
			b.settle(settlement(first, driver.StateReleased), true)
			s := b.fellBack(driver.ClientKey, 2, driver.StateCompleted)
			s.Attempt.Fence.Token = low
			b.settleAgain(s, false)
			b.id = randomKeyID()
			first = b.begun(storeRequest(driver.ClientKey, storeDomain, low))
			b.settle(settlement(first, driver.StateReleased), true)
			s.Attempt.Fence.Token = low + 1
			b.repair(s)
		}
	}},
	{name: "not without Restore", run: func(b *storeBench) {
		b.issue(time.Hour)
		s := b.fellBack(driver.IssuedToken, 1, driver.StateCompleted)
		s.Repair = nil
		b.settleAgain(s, false)
	}},
	{name: "a missing record is written anew without trust, unless it would be released", run: func(b *storeBench) {
		for _, state := range settledStates {
			b.id = randomKeyID()
			s, _ := b.restoring(driver.ClientKey, state)
			s.LeaseTrusted = false
			if state == driver.StateReleased {
				b.settleAgain(s, false)
			} else {
				b.repair(s)
			}
		}
	}},
	{name: "what is settled as usual is no repair", run: func(b *storeBench) {
		a, req := b.start(driver.ClientKey)
		s := settlement(a, driver.StateUnknown)
		s.Repair, s.LeaseTrusted = &driver.Repair{Kind: req.Kind, Route: req.Route}, true
		b.repaired(s, false)
	}},
	{name: "deciding a repaired one is no repair", run: func(b *storeBench) {
		b.start(driver.ClientKey)
		s := b.fellBack(driver.ClientKey, 2, driver.StateUnknown)
		b.repair(s)
		b.repaired(decision(s.Attempt, driver.StateCompleted), false)
	}},
	{name: "a late one after the next attempt", run: func(b *storeBench) {
		first, _ := b.start(driver.ClientKey)
		b.settle(settlement(first, driver.StateReleased), true)
		s := b.fellBack(driver.ClientKey, 2, driver.StateReleased)
		b.repair(s)
		next, _ := b.start(driver.ClientKey)
		b.settleAgain(s, false)
		b.settle(settlement(next, driver.StateReleased), true)
		b.settleAgain(s, false)
	}},
	{name: "Begin says what it replaced, and again", run: func(b *storeBench) {
		replaced := func(req driver.BeginRequest, want driver.Replaced) {
			b.Helper()
			for range 2 {
				if res := b.begin(req); !res.Begun || res.Replaced != want {
					b.Errorf("Begin(%v) = %s, replaced %+v, want %+v", b.id, describeBegin(res), res.Replaced, want)
				}
			}
		}
		first := b.request(driver.ClientKey)
		replaced(first, driver.Replaced{})
		a := b.get().Attempt
		b.settle(settlement(a, driver.StateReleased), true)
		replaced(b.request(driver.ClientKey), driver.Replaced{State: driver.StateReleased, Attempt: a})

		b.id = randomKeyID()
		b.issue(time.Hour)
		replaced(b.request(driver.IssuedToken), driver.Replaced{State: driver.StateIssued})
		a = b.get().Attempt
		b.settle(settlement(a, driver.StateReleased), true)
		replaced(b.request(driver.IssuedToken), driver.Replaced{State: driver.StateIssued, Attempt: a})
	}},
}

var settledStates = []driver.State{driver.StateCompleted, driver.StateUnknown, driver.StateReleased}

// fellBack settles an attempt that is unknown to the store, under the next fence, by a holder
// with a trusted lease.
func (b *storeBench) fellBack(kind driver.KeyKind, number uint32, state driver.State) driver.Settlement {
	s, _ := b.restoring(kind, state)
	s.Attempt.Number = number
	return s
}

// repair sends a settlement. It has to repair the record, whole and only once.
func (b *storeBench) repair(s driver.Settlement) driver.Record {
	b.Helper()
	rec := b.repaired(s, true)
	want := driver.Record{
		State: s.State, Kind: s.Repair.Kind, Route: s.Repair.Route, Fingerprint: s.Repair.Fingerprint, Attempt: s.Attempt,
		Response: s.Response, Created: rec.Created, Started: s.Repair.Started, Settled: rec.Settled,
		ResultExpires: rec.ResultExpires, KeyExpires: rec.KeyExpires, TokenExpires: rec.TokenExpires,
		ResultTTL: rec.ResultTTL, KeyTTL: rec.KeyTTL,
	}
	if s.State == driver.StateReleased && s.Repair.Kind == driver.IssuedToken {
		want.State = driver.StateIssued
	}
	if diff := differ(rec, want); diff != "" || rec.Settled.IsZero() || rec.Created.IsZero() {
		b.Errorf("Settle(%v, %v) repaired: %s", b.id, s.State, diff)
	}
	b.isOpen(s.State == driver.StateUnknown)
	b.unchanged(func() { b.Helper(); b.repaired(s, true) })
	return rec
}

// repaired sends a settlement. It has to stand, with or without a repair.
func (b *storeBench) repaired(s driver.Settlement, want bool) driver.Record {
	b.Helper()
	res, err := b.s.Settle(b.ctx, b.id, s)
	if err != nil || !res.Settled || res.Repaired != want {
		b.Fatalf("Settle(%v, %v) = settled %v, repaired %v, %v, want settled, repaired %v", b.id, s.State, res.Settled, res.Repaired, err, want)
	}
	if diff := differ(res.Record, b.get()); diff != "" {
		b.Errorf("Settle(%v, %v) returned another record than Get: %s", b.id, s.State, diff)
	}
	return res.Record
}
