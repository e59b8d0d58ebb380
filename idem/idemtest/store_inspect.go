package idemtest

import (
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// storeInspectTests are about what operators see. A Store that is no [driver.StoreInspector] passes
// them.
var storeInspectTests = []storeTest{
	{name: "the clock is that of the records", run: func(b *storeBench) {
		in, ok := b.s.(driver.StoreInspector)
		if !ok {
			return
		}
		attempt, _ := b.start(driver.ClientKey)
		now, err := in.Clock(b.ctx)
		rec, getErr := b.s.Get(b.ctx, b.id)
		if err != nil || getErr != nil || rec.Attempt != attempt {
			b.Fatalf("Clock() = %v, %v, Get() = %+v, %v", now, err, rec, getErr)
		}
		if age := now.Sub(rec.Started); age < -time.Millisecond || age > storeTimeout {
			b.Errorf("Clock() is %v after the begin of an attempt, want a moment", age)
		}
	}},
	{name: "decisions of persons are kept, newest first", run: func(b *storeBench) {
		in, ok := b.s.(driver.StoreInspector)
		if !ok {
			return
		}
		want := []driver.Decision{{By: "ada", Reason: "first"}, {By: "resolver"}, {By: "bob", Reason: "third"}}
		var ids []driver.Nonce
		for _, d := range want {
			attempt, _ := b.start(driver.ClientKey)
			s := settlement(attempt, driver.StateReleased)
			s.ID, s.Decision = driver.NewNonce(), d
			ids = append(ids, s.ID)
			if res, err := b.s.Settle(b.ctx, b.id, s); err != nil || !res.Settled {
				b.Fatalf("Settle() by %s = %+v, %v, want it settled", d.By, res, err)
			}
		}
		got, err := in.Decisions(b.ctx, b.id)
		if err != nil || len(got) != 2 || got[0].Decision != want[2] || got[1].Decision != want[0] ||
			got[0].ID != ids[2] || got[1].ID != ids[0] || got[0].Attempt != 3 || got[1].Attempt != 1 || got[1].State != driver.StateReleased || got[0].At.Before(got[1].At) {
			b.Errorf("Decisions() = %+v, %v, want those of bob and ada", got, err)
		}
		if got, err := in.Decisions(b.ctx, randomKeyID()); err != nil || len(got) != 0 {
			b.Errorf("Decisions() of an unused key = %+v, %v, want none", got, err)
		}
	}},
	{name: "a response is forgotten, and the key is not", run: func(b *storeBench) {
		f, ok := b.s.(driver.Forgetter)
		if !ok {
			return
		}
		ada := driver.Decision{By: "ada", Reason: "erasure"}
		for _, size := range []int{10, 100_000} { // a store may keep a large one elsewhere
			for _, state := range []driver.State{driver.StateCompleted, driver.StateUnknown} {
				b.id = randomKeyID()
				attempt, _ := b.start(driver.ClientKey)
				s := settlement(attempt, state)
				s.Response = &driver.Response{Status: 201, Header: map[string][]string{"X": {"y"}}, Body: make([]byte, size)}
				s.ResultTTL, s.KeyTTL = time.Hour, 2*time.Hour
				before, err := b.s.Settle(b.ctx, b.id, s)
				if err != nil || !before.Settled {
					b.Fatalf("Settle() = %+v, %v", before, err)
				}
				check := func(method string, rec driver.Record, err error) {
					r := rec.Response
					if err != nil || rec.ResponseErr != nil || rec.State != state || r == nil || !r.Omitted || r.Status != 201 || r.Header != nil || r.Body != nil ||
						rec.Attempt != attempt || rec.Fingerprint != before.Record.Fingerprint || !rec.KeyExpires.Equal(before.Record.KeyExpires) {
						b.Errorf("%s = %+v with %+v, %v, want it %v without its response", method, rec, r, err, state)
					}
				}
				for range 2 {
					rec, err := f.Forget(b.ctx, b.id, ada)
					check("Forget()", rec, err)
				}
				rec, err := b.s.Get(b.ctx, b.id)
				check("Get()", rec, err)
				if in, ok := b.s.(driver.StoreInspector); ok {
					list, err := in.Decisions(b.ctx, b.id)
					if err != nil || len(list) != 1 || list[0].Decision != ada || list[0].State != driver.StateExpired || list[0].Attempt != 1 {
						b.Errorf("Decisions() = %+v, %v, want one of ada", list, err)
					}
				}
			}
		}
		b.id = randomKeyID()
		if rec, err := f.Forget(b.ctx, b.id, ada); err != nil || rec.State != driver.StateNone {
			b.Errorf("Forget() of no record = %+v, %v", rec, err)
		}
		attempt, _ := b.start(driver.ClientKey)
		if rec, err := f.Forget(b.ctx, b.id, ada); err != nil || rec.State != driver.StatePending || rec.Attempt != attempt {
			b.Errorf("Forget() of a pending record = %+v, %v, want it as it was", rec, err)
		}
	}},
	{name: "each key is listed", run: func(b *storeBench) {
		in, ok := b.s.(driver.StoreInspector)
		if !ok {
			return
		}
		settled, _ := b.start(driver.ClientKey)
		if _, err := b.s.Settle(b.ctx, b.id, settlement(settled, driver.StateCompleted)); err != nil {
			b.Fatal(err)
		}
		want := []driver.KeyID{b.id}
		for range 20 {
			b.id = randomKeyID()
			b.start(driver.ClientKey)
			want = append(want, b.id)
		}
		var got []driver.KeyID
		if err := in.EachKey(b.ctx, func(id driver.KeyID) bool { got = append(got, id); return true }); err != nil {
			b.Fatalf("EachKey() = %v", err)
		}
		for _, id := range want {
			if !slices.Contains(got, id) {
				b.Errorf("EachKey() has %d keys, and not %s", len(got), id)
			}
		}
		calls := 0
		if err := in.EachKey(b.ctx, func(driver.KeyID) bool { calls++; return false }); err != nil || calls != 1 {
			b.Errorf("EachKey() called f %d times after false, %v, want once", calls, err)
		}
	}},
}
