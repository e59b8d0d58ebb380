package idemtest

import (
	"bytes"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// storeRerunTests are about attempts from one in doubt.
var storeRerunTests = []storeTest{
	{name: "from an open attempt", run: func(b *storeBench) {
		for _, kind := range []driver.KeyKind{driver.ClientKey, driver.IssuedToken} {
			for _, size := range []int{-1, 0, 4096} {
				first := b.inDoubt(kind, size)
				before := b.get()
				req := b.rerun(kind, first)
				a := b.begun(req)
				rec := b.in(driver.StatePending, 2)
				if a.Number != 2 || rec.Fingerprint != before.Fingerprint || rec.Response != nil || !rec.Settled.IsZero() ||
					!rec.Created.Equal(before.Created) || !rec.TokenExpires.Equal(before.TokenExpires) {
					b.Errorf("Begin(%v) from %v = %+v, want attempt 2 of the same request", b.id, before.State, rec)
				}
				b.unchanged(func() {
					if res := b.begin(req); !res.Begun || res.Record.Attempt != a || res.Replaced != (driver.Replaced{State: before.State, Attempt: first}) {
						b.Errorf("Begin(%v) again = %s, replaced %+v, want %v of %+v", b.id, describeBegin(res), res.Replaced, before.State, first)
					}
				})
				b.isOpen(true)
				b.settle(settlement(a, driver.StateCompleted), true)
				b.stale(req)
				b.isOpen(false)
			}
		}
	}},
	{name: "and from that one", run: func(b *storeBench) {
		first := b.inDoubt(driver.ClientKey, 10)
		second := b.begun(b.rerun(driver.ClientKey, first))
		third := b.begun(b.rerun(driver.ClientKey, second))
		b.settleAgain(settlement(second, driver.StateCompleted), false)
		b.settle(settlement(third, driver.StateUnknown), true)
		if fourth := b.begun(b.rerun(driver.ClientKey, third)); fourth.Number != 4 {
			b.Errorf("Begin(%v) = attempt %d, want 4", b.id, fourth.Number)
		}
	}},
	{name: "from one of another domain", run: func(b *storeBench) {
		first := b.begun(storeRequest(driver.ClientKey, "foreign", ^uint64(0)))
		b.begun(b.rerun(driver.ClientKey, first))
	}},
	{name: "not from another attempt, request or kind", run: func(b *storeBench) {
		for _, size := range []int{-1, 10} {
			first := b.inDoubt(driver.ClientKey, size)
			state := b.get().State
			for name, other := range map[string]func(*driver.BeginRequest){
				"number":      func(r *driver.BeginRequest) { r.RunAgainFrom.Number++ },
				"fence":       func(r *driver.BeginRequest) { r.RunAgainFrom.Fence.Token-- },
				"domain":      func(r *driver.BeginRequest) { r.RunAgainFrom.Fence.Domain = "foreign" },
				"nonce":       func(r *driver.BeginRequest) { r.RunAgainFrom.Nonce[0] ^= 1 },
				"fingerprint": func(r *driver.BeginRequest) { r.Fingerprint.Sum[31] ^= 1 },
				"version":     func(r *driver.BeginRequest) { r.Fingerprint.Version++ },
				"kind":        func(r *driver.BeginRequest) { r.Kind = driver.IssuedToken },
				"fence of it": func(r *driver.BeginRequest) { r.Fence = first.Fence },
			} {
				req := b.rerun(driver.ClientKey, first)
				other(&req)
				b.Logf("with another %s", name)
				b.kept(req, state)
			}
		}
	}},
	{name: "not under a lower fence", run: func(b *storeBench) {
		late := b.request(driver.ClientKey)
		first := b.inDoubt(driver.ClientKey, 10)
		late.RunAgainFrom = &first
		b.stale(late)
	}},
	{name: "not from what is closed or missing", run: func(b *storeBench) {
		for _, state := range []driver.State{driver.StateCompleted, driver.StateReleased} {
			b.id = randomKeyID()
			a, _ := b.start(driver.ClientKey)
			b.settle(settlement(a, state), true)
			b.kept(b.rerun(driver.ClientKey, a), state)
		}
		b.id = randomKeyID()
		gone := driver.Attempt{Number: 1, Fence: driver.Fence{Domain: storeDomain, Token: 7}, Nonce: driver.NewNonce()}
		b.kept(b.rerun(driver.ClientKey, gone), driver.StateNone)
		b.issue(time.Hour)
		b.kept(b.rerun(driver.IssuedToken, driver.Attempt{}), driver.StateIssued)
	}},
	{name: "an open attempt is not begun over without it", run: func(b *storeBench) {
		b.inDoubt(driver.ClientKey, 10)
		b.kept(b.request(driver.ClientKey), driver.StateUnknown)
	}},
	{name: "an Abort leaves it unknown", run: func(b *storeBench) {
		for _, kind := range []driver.KeyKind{driver.ClientKey, driver.IssuedToken} {
			for _, size := range []int{-1, 10, 4096} {
				for _, arrived := range []bool{true, false} {
					first := b.inDoubt(kind, size)
					before := b.get()
					req := b.rerun(kind, first)
					if arrived {
						b.begun(req)
					}
					b.abort(req)
					rec := b.in(driver.StateUnknown, 2)
					want := before
					want.State, want.Response, want.Started, want.Settled = driver.StateUnknown, nil, rec.Started, rec.Settled
					want.Attempt = driver.Attempt{Number: 2, Fence: req.Fence, Nonce: req.Nonce}
					if diff := differ(rec, want); diff != "" || rec.Settled.IsZero() {
						b.Errorf("Get(%v) after the Abort of a Begin that arrived (%v): %s", b.id, arrived, diff)
					}
					b.isOpen(true)
					b.abortAgain(req)
					b.kept(req, driver.StateUnknown)
					b.kept(b.request(kind), driver.StateUnknown)
					b.settleAgain(settlement(first, driver.StateReleased), false)
					next := b.begun(b.rerun(kind, rec.Attempt))
					b.abortAgain(req)
					b.settle(settlement(next, driver.StateCompleted), true)
					b.abortAgain(req)
				}
			}
		}
	}},
	{name: "an Abort changes nothing else", run: func(b *storeBench) {
		early := b.request(driver.ClientKey)
		first := b.inDoubt(driver.ClientKey, 10)
		early.RunAgainFrom = &first
		b.abortAgain(early) // under a lower fence
		other := first
		other.Nonce[0] ^= 1
		b.abortAgain(b.rerun(driver.ClientKey, other))
		b.abortAgain(b.rerun(driver.IssuedToken, first))
		req := b.rerun(driver.ClientKey, first)
		b.settle(decision(first, driver.StateReleased), true)
		b.abortAgain(req)
		b.id = randomKeyID()
		b.abortAgain(req)
		b.in(driver.StateNone, 0)
	}},
	{name: "a settled one is not aborted", run: func(b *storeBench) {
		first := b.inDoubt(driver.ClientKey, 10)
		req := b.rerun(driver.ClientKey, first)
		a := b.begun(req)
		b.settle(settlement(a, driver.StateUnknown), true)
		b.abortAgain(req)
		b.settle(settlement(a, driver.StateCompleted), true)
		b.abortAgain(req)
	}},
}

// inDoubt makes a key with a first attempt in doubt. It is pending for a negative size, and
// otherwise unknown with a response of so many bytes.
func (b *storeBench) inDoubt(kind driver.KeyKind, size int) driver.Attempt {
	b.Helper()
	b.id = randomKeyID()
	if kind == driver.IssuedToken {
		b.issue(time.Hour)
	}
	a, _ := b.start(kind)
	if size >= 0 {
		s := settlement(a, driver.StateUnknown)
		s.Response = &driver.Response{Status: 502, Body: bytes.Repeat([]byte("x"), size)}
		b.settle(s, true)
	}
	return a
}

// rerun returns the Begin of an attempt that starts over from another.
func (b *storeBench) rerun(kind driver.KeyKind, from driver.Attempt) driver.BeginRequest {
	req := b.request(kind)
	req.RunAgainFrom = &from
	return req
}
