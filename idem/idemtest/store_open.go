package idemtest

import (
	"bytes"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// storeOpenTests are about ListOpen.
var storeOpenTests = []storeTest{
	{name: "nothing is open at first", run: func(b *storeBench) {
		if got := b.open(idem.OpenQuery{}); len(got) != 0 {
			b.Errorf("ListOpen() = %d records, want none", len(got))
		}
	}},
	{name: "pending and unknown are, by state", run: func(b *storeBench) {
		_, _ = b.start(idem.ClientKey)
		pending := b.id
		b.id = randomKeyID()
		a, _ := b.start(idem.ClientKey)
		b.settle(settlement(a, idem.StateUnknown), true)
		unknown := b.id
		b.listed(idem.OpenQuery{State: idem.StatePending}, pending)
		b.listed(idem.OpenQuery{State: idem.StateUnknown}, unknown)
		if got := b.open(idem.OpenQuery{}); len(got) != 2 {
			b.Errorf("ListOpen() = %d records, want 2", len(got))
		}
	}},
	{name: "a row is the whole record", run: func(b *storeBench) {
		for _, size := range []int{10, 4096} {
			b.id = randomKeyID()
			a, _ := b.start(idem.ClientKey)
			s := decision(a, idem.StateUnknown)
			s.Response = &idem.Response{Status: 502, Body: bytes.Repeat([]byte("x"), size)}
			b.settle(s, true)
			rows := b.open(idem.OpenQuery{State: idem.StateUnknown})
			i := slices.IndexFunc(rows, func(r idem.OpenRecord) bool { return r.ID == b.id })
			if i < 0 {
				b.Fatalf("ListOpen() does not list %v", b.id)
			}
			if diff := differ(rows[i].Record, b.get()); diff != "" {
				b.Errorf("ListOpen() lists %v with %s", b.id, diff)
			}
		}
	}},
	{name: "a listing without responses, and without what the caller skips", run: func(b *storeBench) {
		var all []idem.KeyID
		for _, size := range []int{10, 4096, 0, 10, 0} {
			b.id = randomKeyID()
			a, _ := b.start(idem.ClientKey)
			s := decision(a, idem.StateUnknown)
			if s.Response = nil; size > 0 {
				s.Response = &idem.Response{Status: 502, Body: bytes.Repeat([]byte("x"), size)}
			}
			b.settle(s, true)
			all = append(all, b.id)
		}
		rows := b.open(idem.OpenQuery{WithoutResponses: true})
		for _, r := range rows {
			if r.Record.Response != nil || r.Record.ResponseErr != nil || r.Err != nil || r.Record.State != idem.StateUnknown {
				b.Errorf("ListOpen() without responses lists %+v", r)
			}
		}
		for limit := range 3 { // 0 is the largest
			for _, skip := range [][]idem.KeyID{all[:1], all[1:4], all} {
				got := b.open(idem.OpenQuery{Limit: limit, Skip: func(c idem.OpenCursor) bool { return slices.Contains(skip, c.ID) }})
				if len(rows) != len(all) || limit == 0 && len(got) != len(all)-len(skip) || slices.ContainsFunc(got, func(r idem.OpenRecord) bool { return slices.Contains(skip, r.ID) }) {
					b.Errorf("ListOpen() of %d records, %d of them to be skipped, lists %d", len(all), len(skip), len(got))
				}
			}
		}
	}},
	{name: "settled ones are not", run: func(b *storeBench) {
		for _, state := range []idem.State{idem.StateCompleted, idem.StateReleased} {
			for _, first := range []idem.State{idem.StatePending, idem.StateUnknown} {
				b.id = randomKeyID()
				a, _ := b.start(idem.ClientKey)
				if first == idem.StateUnknown {
					b.settle(decision(a, first), true)
				}
				b.isOpen(true)
				b.settle(settlement(a, state), true)
				b.isOpen(false)
			}
		}
	}},
	{name: "issued tokens are not", run: func(b *storeBench) {
		b.issue(time.Hour)
		b.isOpen(false)
		a, _ := b.start(idem.IssuedToken)
		b.isOpen(true)
		b.settle(settlement(a, idem.StateReleased), true)
		b.isOpen(false)
	}},
	{name: "oldest first, by the start of the attempt", moves: true, run: func(b *storeBench) {
		var want []idem.KeyID
		released, _ := b.start(idem.ClientKey)
		again := b.id
		b.settle(settlement(released, idem.StateReleased), true)
		for range 5 {
			b.h.Advance(time.Minute)
			b.id = randomKeyID()
			b.start(idem.ClientKey)
			want = append(want, b.id)
		}
		b.h.Advance(time.Minute)
		b.id = again
		b.start(idem.ClientKey)
		b.listed(idem.OpenQuery{}, append(want, again)...)
		b.listed(idem.OpenQuery{Limit: 2}, want[:2]...)
	}},
	{name: "an unknown attempt keeps its place", moves: true, run: func(b *storeBench) {
		first := b.id
		a, _ := b.start(idem.ClientKey)
		b.h.Advance(time.Minute)
		b.id = randomKeyID()
		second := b.id
		b.start(idem.ClientKey)
		b.h.Advance(time.Minute)
		b.id = first
		b.settle(settlement(a, idem.StateUnknown), true)
		b.listed(idem.OpenQuery{}, first, second)
		b.listed(idem.OpenQuery{OlderThan: 90 * time.Second}, first)
	}},
	{name: "old enough only", moves: true, run: func(b *storeBench) {
		first := b.id
		b.start(idem.ClientKey)
		b.h.Advance(time.Hour)
		b.id = randomKeyID()
		b.start(idem.ClientKey)
		b.listed(idem.OpenQuery{OlderThan: time.Minute}, first)
		b.listed(idem.OpenQuery{OlderThan: time.Minute, State: idem.StateUnknown})
		b.h.Advance(time.Hour)
		b.listed(idem.OpenQuery{OlderThan: time.Minute}, first, b.id)
	}},
	{name: "what has just begun is not old", run: func(b *storeBench) {
		b.start(idem.ClientKey)
		b.listed(idem.OpenQuery{OlderThan: time.Hour})
	}},
	{name: "many, with a limit and a state", run: func(b *storeBench) {
		const n = 80
		started := make(map[idem.KeyID]time.Time, n)
		unknown := 0
		for i := range n {
			b.id = randomKeyID()
			res := b.begin(b.request(idem.ClientKey))
			started[b.id] = res.Record.Started
			if i%3 == 0 {
				b.settle(settlement(res.Record.Attempt, idem.StateUnknown), true)
				unknown++
			}
		}
		for _, q := range []struct {
			idem.OpenQuery
			want int
		}{
			{idem.OpenQuery{}, n}, {idem.OpenQuery{Limit: 1}, 1}, {idem.OpenQuery{Limit: 64}, 64}, {idem.OpenQuery{Limit: n * 2}, n},
			{idem.OpenQuery{State: idem.StateUnknown}, unknown}, {idem.OpenQuery{State: idem.StateUnknown, Limit: 20}, 20},
			{idem.OpenQuery{State: idem.StatePending}, n - unknown},
		} {
			got := b.open(q.OpenQuery)
			if len(got) != q.want {
				b.Fatalf("ListOpen(%+v) = %d records, want %d", q.OpenQuery, len(got), q.want)
			}
			listed := make(map[idem.KeyID]bool, len(got))
			for i, r := range got {
				listed[r.ID] = true
				if i > 0 && r.Record.Started.Before(got[i-1].Record.Started) {
					b.Errorf("ListOpen(%+v): row %d started before row %d", q.OpenQuery, i, i-1)
				}
			}
			last := got[len(got)-1].Record.Started
			for id, at := range started {
				if q.State == idem.StateNone && at.Before(last) && !listed[id] {
					b.Errorf("ListOpen(%+v) leaves out %v, which is older than the last row", q.OpenQuery, id)
				}
			}
			if len(listed) != len(got) {
				b.Errorf("ListOpen(%+v) lists a record twice", q.OpenQuery)
			}
		}
		var whole []idem.KeyID
		for _, r := range b.open(idem.OpenQuery{}) {
			whole = append(whole, r.ID)
		}
		for _, limit := range []int{1, 7, 64} {
			var paged []idem.KeyID
			for q := (idem.OpenQuery{Limit: limit}); ; {
				page := b.page(q)
				for _, r := range page.Records {
					paged = append(paged, r.ID)
				}
				if q.After = page.Next; q.After == nil {
					break
				}
			}
			if !slices.Equal(paged, whole) {
				b.Errorf("pages of %d list %d records, want the %d of one listing in its order", limit, len(paged), len(whole))
			}
		}
	}},
}

// listed requires exactly these rows, in this order.
func (b *storeBench) listed(q idem.OpenQuery, want ...idem.KeyID) {
	b.Helper()
	var got []idem.KeyID
	for _, r := range b.open(q) {
		got = append(got, r.ID)
	}
	if !slices.Equal(got, want) {
		b.Errorf("ListOpen(%+v) = %v, want %v", q, got, want)
	}
}
