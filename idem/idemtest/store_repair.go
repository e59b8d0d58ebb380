package idemtest

import (
	"bytes"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// storeRepairTests are about a store that fell back. A promoted replica that was stale has the
// record from before the attempt.
var storeRepairTests = []storeTest{
	{name: "an issued token that was never used", run: func(b *storeBench) {
		for _, state := range settledStates {
			for _, trusted := range []bool{true, false} {
				b.id = randomKeyID()
				issued := b.issue(time.Hour)
				s := b.fellBack(idem.IssuedToken, 1, state)
				s.LeaseTrusted = trusted
				if state == idem.StateReleased && !trusted {
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
		for _, kind := range []idem.KeyKind{idem.ClientKey, idem.IssuedToken} {
			for _, state := range settledStates {
				b.id = randomKeyID()
				if kind == idem.IssuedToken {
					b.issue(time.Hour)
				}
				first, _ := b.start(kind)
				b.settle(settlement(first, idem.StateReleased), true)
				b.repair(b.fellBack(kind, 2, state))
			}
		}
	}},
	{name: "an earlier attempt that is open", run: func(b *storeBench) {
		for _, open := range []idem.State{idem.StatePending, idem.StateUnknown} {
			for _, state := range settledStates {
				b.id = randomKeyID()
				first, _ := b.start(idem.ClientKey)
				if open == idem.StateUnknown {
					s := settlement(first, open)
					s.Response.Body = bytes.Repeat([]byte("x"), 4096)
					b.settle(s, true)
				}
				b.isOpen(true)
				b.repair(b.fellBack(idem.ClientKey, 2, state))
			}
		}
	}},
	{name: "an unknown attempt keeps its place among the open ones", run: func(b *storeBench) {
		b.start(idem.ClientKey)
		s := b.fellBack(idem.ClientKey, 2, idem.StateUnknown)
		b.repair(s)
		rows := b.open(idem.OpenQuery{})
		if len(rows) != 1 || !rows[0].Record.Started.Equal(s.Repair.Started) {
			b.Fatalf("ListOpen() = %d rows, want one that started at %v", len(rows), s.Repair.Started)
		}
		after := rows[0].Cursor()
		if rows := b.open(idem.OpenQuery{After: &after}); len(rows) != 0 {
			b.Errorf("ListOpen() after the last row = %d rows, want none", len(rows))
		}
	}},
	{name: "a fence is left in it", run: func(b *storeBench) {
		b.issue(time.Hour)
		late := b.request(idem.IssuedToken)
		s := b.fellBack(idem.IssuedToken, 1, idem.StateReleased)
		b.repair(s)
		b.stale(late)
		b.stale(storeRequest(idem.IssuedToken, storeDomain, s.Attempt.Fence.Token))
		if next, _ := b.start(idem.IssuedToken); next.Number != 2 {
			b.Errorf("Begin(%v) = attempt %d, want 2", b.id, next.Number)
		}
	}},
	{name: "never a completed one", run: func(b *storeBench) {
		for _, state := range settledStates {
			b.id = randomKeyID()
			first, _ := b.start(idem.ClientKey)
			b.settle(settlement(first, idem.StateCompleted), true)
			b.settleAgain(b.fellBack(idem.ClientKey, 2, state), false)
		}
	}},
	{name: "never one of another kind", run: func(b *storeBench) {
		b.issue(time.Hour)
		b.settleAgain(b.fellBack(idem.ClientKey, 1, idem.StateCompleted), false)
		b.id = randomKeyID()
		first, _ := b.start(idem.ClientKey)
		b.settle(settlement(first, idem.StateReleased), true)
		b.settleAgain(b.fellBack(idem.IssuedToken, 2, idem.StateCompleted), false)
	}},
	{name: "never one under an equal or a higher fence", run: func(b *storeBench) {
		for _, stored := range []idem.State{idem.StatePending, idem.StateUnknown, idem.StateReleased} {
			for _, ahead := range []uint64{0, 1, 1 << 32} {
				for _, state := range settledStates {
					b.id = randomKeyID()
					later, _ := b.start(idem.ClientKey)
					if stored != idem.StatePending {
						b.settle(settlement(later, stored), true)
					}
					s := b.fellBack(idem.ClientKey, 7, state)
					s.Attempt.Fence.Token = later.Fence.Token - ahead
					b.settleAgain(s, false)
				}
			}
		}
	}},
	{name: "an open one only with a lower number", run: func(b *storeBench) {
		for _, open := range []idem.State{idem.StatePending, idem.StateUnknown} {
			b.id = randomKeyID()
			first, _ := b.start(idem.ClientKey)
			if open == idem.StateUnknown {
				b.settle(settlement(first, open), true)
			}
			b.settleAgain(b.fellBack(idem.ClientKey, 1, idem.StateCompleted), false)
			b.settleAgain(b.fellBack(idem.ClientKey, 0, idem.StateCompleted), false)
		}
	}},
	{name: "of another domain exactly the one that was replaced", run: func(b *storeBench) {
		for _, stored := range []idem.State{idem.StatePending, idem.StateUnknown, idem.StateReleased} {
			b.id = randomKeyID()
			theirs := b.begun(storeRequest(idem.ClientKey, "foreign", 7))
			if stored != idem.StatePending {
				b.settle(settlement(theirs, stored), true)
			}
			s := b.fellBack(idem.ClientKey, 2, idem.StateCompleted)
			b.settleAgain(s, false)
			for name, wrong := range map[string]func(*idem.Replaced){
				"state":  func(r *idem.Replaced) { r.State = idem.StateIssued },
				"number": func(r *idem.Replaced) { r.Attempt.Number++ },
				"fence":  func(r *idem.Replaced) { r.Attempt.Fence.Token-- },
				"domain": func(r *idem.Replaced) { r.Attempt.Fence.Domain = "another" },
				"nonce":  func(r *idem.Replaced) { r.Attempt.Nonce[15] ^= 1 },
			} {
				s.Repair.Replaced = idem.Replaced{State: stored, Attempt: theirs}
				wrong(&s.Repair.Replaced)
				b.Logf("with another %s", name)
				b.settleAgain(s, false)
			}
			s.Repair.Replaced = idem.Replaced{State: stored, Attempt: theirs}
			b.repair(s)
		}
	}},
	{name: "fences are compared to their last bit", run: func(b *storeBench) {
		for _, low := range []uint64{1, 1<<32 - 1, 1 << 53, 1<<53 + 1, 1<<63 - 1, 1<<64 - 2} {
			b.id = randomKeyID()
			first := b.begun(storeRequest(idem.ClientKey, storeDomain, low+1))
			b.settle(settlement(first, idem.StateReleased), true)
			s := b.fellBack(idem.ClientKey, 2, idem.StateCompleted)
			s.Attempt.Fence.Token = low
			b.settleAgain(s, false)
			b.id = randomKeyID()
			first = b.begun(storeRequest(idem.ClientKey, storeDomain, low))
			b.settle(settlement(first, idem.StateReleased), true)
			s.Attempt.Fence.Token = low + 1
			b.repair(s)
		}
	}},
	{name: "not without Restore", run: func(b *storeBench) {
		b.issue(time.Hour)
		s := b.fellBack(idem.IssuedToken, 1, idem.StateCompleted)
		s.Repair = nil
		b.settleAgain(s, false)
	}},
	{name: "a missing record is written anew without trust, unless it would be released", run: func(b *storeBench) {
		for _, state := range settledStates {
			b.id = randomKeyID()
			s, _ := b.restoring(idem.ClientKey, state)
			s.LeaseTrusted = false
			if state == idem.StateReleased {
				b.settleAgain(s, false)
			} else {
				b.repair(s)
			}
		}
	}},
	{name: "what is settled as usual is no repair", run: func(b *storeBench) {
		a, req := b.start(idem.ClientKey)
		s := settlement(a, idem.StateUnknown)
		s.Repair, s.LeaseTrusted = &idem.Repair{Kind: req.Kind, Route: req.Route}, true
		b.repaired(s, false)
	}},
	{name: "deciding a repaired one is no repair", run: func(b *storeBench) {
		b.start(idem.ClientKey)
		s := b.fellBack(idem.ClientKey, 2, idem.StateUnknown)
		b.repair(s)
		b.repaired(decision(s.Attempt, idem.StateCompleted), false)
	}},
	{name: "a late one after the next attempt", run: func(b *storeBench) {
		first, _ := b.start(idem.ClientKey)
		b.settle(settlement(first, idem.StateReleased), true)
		s := b.fellBack(idem.ClientKey, 2, idem.StateReleased)
		b.repair(s)
		next, _ := b.start(idem.ClientKey)
		b.settleAgain(s, false)
		b.settle(settlement(next, idem.StateReleased), true)
		b.settleAgain(s, false)
	}},
	{name: "Begin says what it replaced, and again", run: func(b *storeBench) {
		replaced := func(req idem.BeginRequest, want idem.Replaced) {
			b.Helper()
			for range 2 {
				if res := b.begin(req); !res.Begun || res.Replaced != want {
					b.Errorf("Begin(%v) = %s, replaced %+v, want %+v", b.id, describeBegin(res), res.Replaced, want)
				}
			}
		}
		first := b.request(idem.ClientKey)
		replaced(first, idem.Replaced{})
		a := b.get().Attempt
		b.settle(settlement(a, idem.StateReleased), true)
		replaced(b.request(idem.ClientKey), idem.Replaced{State: idem.StateReleased, Attempt: a})

		b.id = randomKeyID()
		b.issue(time.Hour)
		replaced(b.request(idem.IssuedToken), idem.Replaced{State: idem.StateIssued})
		a = b.get().Attempt
		b.settle(settlement(a, idem.StateReleased), true)
		replaced(b.request(idem.IssuedToken), idem.Replaced{State: idem.StateIssued, Attempt: a})
	}},
}

var settledStates = []idem.State{idem.StateCompleted, idem.StateUnknown, idem.StateReleased}

// fellBack settles an attempt that is unknown to the store, under the next fence, by a holder
// with a trusted lease.
func (b *storeBench) fellBack(kind idem.KeyKind, number uint32, state idem.State) idem.Settlement {
	s, _ := b.restoring(kind, state)
	s.Attempt.Number = number
	return s
}

// repair sends a settlement. It has to repair the record, whole and only once.
func (b *storeBench) repair(s idem.Settlement) idem.Record {
	b.Helper()
	rec := b.repaired(s, true)
	want := idem.Record{
		State: s.State, Kind: s.Repair.Kind, Route: s.Repair.Route, Fingerprint: s.Repair.Fingerprint, Attempt: s.Attempt,
		Response: s.Response, Created: rec.Created, Started: s.Repair.Started, Settled: rec.Settled,
		ResultExpires: rec.ResultExpires, KeyExpires: rec.KeyExpires, TokenExpires: rec.TokenExpires,
		ResultTTL: rec.ResultTTL, KeyTTL: rec.KeyTTL,
	}
	if s.State == idem.StateReleased && s.Repair.Kind == idem.IssuedToken {
		want.State = idem.StateIssued
	}
	if diff := differ(rec, want); diff != "" || rec.Settled.IsZero() || rec.Created.IsZero() {
		b.Errorf("Settle(%v, %v) repaired: %s", b.id, s.State, diff)
	}
	b.isOpen(s.State == idem.StateUnknown)
	b.unchanged(func() { b.Helper(); b.repaired(s, true) })
	return rec
}

// repaired sends a settlement. It has to stand, with or without a repair.
func (b *storeBench) repaired(s idem.Settlement, want bool) idem.Record {
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
