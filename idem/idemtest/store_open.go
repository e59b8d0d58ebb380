package idemtest

import (
	"bytes"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// storeOpenTests are about ListOpen.
var storeOpenTests = []storeTest{
	{name: "nothing is open at first", run: func(b *storeBench) {
		if got := b.open(driver.OpenQuery{}); len(got) != 0 {
			b.Errorf("ListOpen() = %d records, want none", len(got))
		}
	}},
	{name: "pending and unknown are, by state", run: func(b *storeBench) {
		_, _ = b.start(driver.ClientKey)
		pending := b.id
		b.id = randomKeyID()
		a, _ := b.start(driver.ClientKey)
		b.settle(settlement(a, driver.StateUnknown), true)
		unknown := b.id
		b.listed(driver.OpenQuery{State: driver.StatePending}, pending)
		b.listed(driver.OpenQuery{State: driver.StateUnknown}, unknown)
		if got := b.open(driver.OpenQuery{}); len(got) != 2 {
			b.Errorf("ListOpen() = %d records, want 2", len(got))
		}
	}},
	{name: "a row is the whole record", run: func(b *storeBench) {
		for _, size := range []int{10, 4096} {
			b.id = randomKeyID()
			a, _ := b.start(driver.ClientKey)
			s := decision(a, driver.StateUnknown)
			s.Response = &driver.Response{Status: 502, Body: bytes.Repeat([]byte("x"), size)}
			b.settle(s, true)
			rows := b.open(driver.OpenQuery{State: driver.StateUnknown})
			i := slices.IndexFunc(rows, func(r driver.OpenRecord) bool { return r.ID == b.id })
			if i < 0 {
				b.Fatalf("ListOpen() does not list %v", b.id)
			}
			if diff := differ(rows[i].Record, b.get()); diff != "" {
				b.Errorf("ListOpen() lists %v with %s", b.id, diff)
			}
		}
	}},
	{name: "a listing without responses, and without what the caller skips", run: func(b *storeBench) {
		var all []driver.KeyID
		for _, size := range []int{10, 4096, 0, 10, 0} {
			b.id = randomKeyID()
			a, _ := b.start(driver.ClientKey)
			s := decision(a, driver.StateUnknown)
			if s.Response = nil; size > 0 {
				s.Response = &driver.Response{Status: 502, Body: bytes.Repeat([]byte("x"), size)}
			}
			b.settle(s, true)
			all = append(all, b.id)
		}
		rows := b.open(driver.OpenQuery{WithoutResponses: true})
		for _, r := range rows {
			if r.Record.Response != nil || r.Record.ResponseErr != nil || r.Err != nil || r.Record.State != driver.StateUnknown {
				b.Errorf("ListOpen() without responses lists %+v", r)
			}
		}
		for limit := range 3 { // 0 is the largest
			for _, skip := range [][]driver.KeyID{all[:1], all[1:4], all} {
				got := b.open(driver.OpenQuery{Limit: limit, Skip: func(c driver.OpenCursor) bool { return slices.Contains(skip, c.ID) }})
				if len(rows) != len(all) || limit == 0 && len(got) != len(all)-len(skip) || slices.ContainsFunc(got, func(r driver.OpenRecord) bool { return slices.Contains(skip, r.ID) }) {
					b.Errorf("ListOpen() of %d records, %d of them to be skipped, lists %d", len(all), len(skip), len(got))
				}
			}
		}
	}},
	{name: "settled ones are not", run: func(b *storeBench) {
		for _, state := range []driver.State{driver.StateCompleted, driver.StateReleased} {
			for _, first := range []driver.State{driver.StatePending, driver.StateUnknown} {
				b.id = randomKeyID()
				a, _ := b.start(driver.ClientKey)
				if first == driver.StateUnknown {
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
		a, _ := b.start(driver.IssuedToken)
		b.isOpen(true)
		b.settle(settlement(a, driver.StateReleased), true)
		b.isOpen(false)
	}},
	{name: "oldest first, by the start of the attempt", moves: true, run: func(b *storeBench) {
		var want []driver.KeyID
		released, _ := b.start(driver.ClientKey)
		again := b.id
		b.settle(settlement(released, driver.StateReleased), true)
		for range 5 {
			b.h.Advance(time.Minute)
			b.id = randomKeyID()
			b.start(driver.ClientKey)
			want = append(want, b.id)
		}
		b.h.Advance(time.Minute)
		b.id = again
		b.start(driver.ClientKey)
		b.listed(driver.OpenQuery{}, append(want, again)...)
		b.listed(driver.OpenQuery{Limit: 2}, want[:2]...)
	}},
	{name: "an unknown attempt keeps its place", moves: true, run: func(b *storeBench) {
		first := b.id
		a, _ := b.start(driver.ClientKey)
		b.h.Advance(time.Minute)
		b.id = randomKeyID()
		second := b.id
		b.start(driver.ClientKey)
		b.h.Advance(time.Minute)
		b.id = first
		b.settle(settlement(a, driver.StateUnknown), true)
		b.listed(driver.OpenQuery{}, first, second)
		b.listed(driver.OpenQuery{OlderThan: 90 * time.Second}, first)
	}},
	{name: "old enough only", moves: true, run: func(b *storeBench) {
		first := b.id
		b.start(driver.ClientKey)
		b.h.Advance(time.Hour)
		b.id = randomKeyID()
		b.start(driver.ClientKey)
		b.listed(driver.OpenQuery{OlderThan: time.Minute}, first)
		b.listed(driver.OpenQuery{OlderThan: time.Minute, State: driver.StateUnknown})
		b.h.Advance(time.Hour)
		b.listed(driver.OpenQuery{OlderThan: time.Minute}, first, b.id)
	}},
	{name: "what has just begun is not old", run: func(b *storeBench) {
		b.start(driver.ClientKey)
		b.listed(driver.OpenQuery{OlderThan: time.Hour})
	}},
	{name: "many, with a limit and a state", run: func(b *storeBench) {
		const n = 80
		started := make(map[driver.KeyID]time.Time, n)
		unknown := 0
		for i := range n {
			b.id = randomKeyID()
			res := b.begin(b.request(driver.ClientKey))
			started[b.id] = res.Record.Started
			if i%3 == 0 {
				b.settle(settlement(res.Record.Attempt, driver.StateUnknown), true)
				unknown++
			}
		}
		for _, q := range []struct {
			driver.OpenQuery
			want int
		}{
			{driver.OpenQuery{}, n}, {driver.OpenQuery{Limit: 1}, 1}, {driver.OpenQuery{Limit: 64}, 64}, {driver.OpenQuery{Limit: n * 2}, n},
			{driver.OpenQuery{State: driver.StateUnknown}, unknown}, {driver.OpenQuery{State: driver.StateUnknown, Limit: 20}, 20},
			{driver.OpenQuery{State: driver.StatePending}, n - unknown},
		} {
			got := b.open(q.OpenQuery)
			if len(got) != q.want {
				b.Fatalf("ListOpen(%+v) = %d records, want %d", q.OpenQuery, len(got), q.want)
			}
			listed := make(map[driver.KeyID]bool, len(got))
			for i, r := range got {
				listed[r.ID] = true
				if i > 0 && r.Record.Started.Before(got[i-1].Record.Started) {
					b.Errorf("ListOpen(%+v): row %d started before row %d", q.OpenQuery, i, i-1)
				}
			}
			last := got[len(got)-1].Record.Started
			for id, at := range started {
				if q.State == driver.StateNone && at.Before(last) && !listed[id] {
					b.Errorf("ListOpen(%+v) leaves out %v, which is older than the last row", q.OpenQuery, id)
				}
			}
			if len(listed) != len(got) {
				b.Errorf("ListOpen(%+v) lists a record twice", q.OpenQuery)
			}
		}
		var whole []driver.KeyID
		for _, r := range b.open(driver.OpenQuery{}) {
			whole = append(whole, r.ID)
		}
		for _, limit := range []int{3, 64} {
			var paged []driver.KeyID
			for q := (driver.OpenQuery{Limit: limit}); ; {
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
func (b *storeBench) listed(q driver.OpenQuery, want ...driver.KeyID) {
	b.Helper()
	var got []driver.KeyID
	for _, r := range b.open(q) {
		got = append(got, r.ID)
	}
	if !slices.Equal(got, want) {
		b.Errorf("ListOpen(%+v) = %v, want %v", q, got, want)
	}
}
