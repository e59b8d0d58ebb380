package idemtest

import (
	"bytes"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// storeRerunTests are about attempts from one in doubt.
var storeRerunTests = []storeTest{
	{name: "from an open attempt", run: func(b *storeBench) {
		for _, kind := range []idem.KeyKind{idem.ClientKey, idem.IssuedToken} {
			for _, size := range []int{-1, 0, 4096} {
				first := b.inDoubt(kind, size)
				before := b.get()
				req := b.rerun(kind, first)
				a := b.begun(req)
				rec := b.in(idem.StatePending, 2)
				if a.Number != 2 || rec.Fingerprint != before.Fingerprint || rec.Response != nil || !rec.Settled.IsZero() ||
					!rec.Created.Equal(before.Created) || !rec.TokenExpires.Equal(before.TokenExpires) {
					b.Errorf("Begin(%v) from %v = %+v, want attempt 2 of the same request", b.id, before.State, rec)
				}
				b.unchanged(func() {
					if res := b.begin(req); !res.Begun || res.Record.Attempt != a || res.Replaced != (idem.Replaced{State: before.State, Attempt: first}) {
						b.Errorf("Begin(%v) again = %s, replaced %+v, want %v of %+v", b.id, describeBegin(res), res.Replaced, before.State, first)
					}
				})
				b.isOpen(true)
				b.settle(settlement(a, idem.StateCompleted), true)
				b.stale(req)
				b.isOpen(false)
			}
		}
	}},
	{name: "and from that one", run: func(b *storeBench) {
		first := b.inDoubt(idem.ClientKey, 10)
		second := b.begun(b.rerun(idem.ClientKey, first))
		third := b.begun(b.rerun(idem.ClientKey, second))
		b.settleAgain(settlement(second, idem.StateCompleted), false)
		b.settle(settlement(third, idem.StateUnknown), true)
		if fourth := b.begun(b.rerun(idem.ClientKey, third)); fourth.Number != 4 {
			b.Errorf("Begin(%v) = attempt %d, want 4", b.id, fourth.Number)
		}
	}},
	{name: "from one of another domain", run: func(b *storeBench) {
		first := b.begun(storeRequest(idem.ClientKey, "foreign", ^uint64(0)))
		b.begun(b.rerun(idem.ClientKey, first))
	}},
	{name: "not from another attempt, request or kind", run: func(b *storeBench) {
		for _, size := range []int{-1, 10} {
			first := b.inDoubt(idem.ClientKey, size)
			state := b.get().State
			for name, other := range map[string]func(*idem.BeginRequest){
				"number":      func(r *idem.BeginRequest) { r.RunAgainFrom.Number++ },
				"fence":       func(r *idem.BeginRequest) { r.RunAgainFrom.Fence.Token-- },
				"domain":      func(r *idem.BeginRequest) { r.RunAgainFrom.Fence.Domain = "foreign" },
				"nonce":       func(r *idem.BeginRequest) { r.RunAgainFrom.Nonce[0] ^= 1 },
				"fingerprint": func(r *idem.BeginRequest) { r.Fingerprint.Sum[31] ^= 1 },
				"version":     func(r *idem.BeginRequest) { r.Fingerprint.Version++ },
				"kind":        func(r *idem.BeginRequest) { r.Kind = idem.IssuedToken },
				"fence of it": func(r *idem.BeginRequest) { r.Fence = first.Fence },
			} {
				req := b.rerun(idem.ClientKey, first)
				other(&req)
				b.Logf("with another %s", name)
				b.kept(req, state)
			}
		}
	}},
	{name: "not under a lower fence", run: func(b *storeBench) {
		late := b.request(idem.ClientKey)
		first := b.inDoubt(idem.ClientKey, 10)
		late.RunAgainFrom = &first
		b.stale(late)
	}},
	{name: "not from what is closed or missing", run: func(b *storeBench) {
		for _, state := range []idem.State{idem.StateCompleted, idem.StateReleased} {
			b.id = randomKeyID()
			a, _ := b.start(idem.ClientKey)
			b.settle(settlement(a, state), true)
			b.kept(b.rerun(idem.ClientKey, a), state)
		}
		b.id = randomKeyID()
		gone := idem.Attempt{Number: 1, Fence: idem.Fence{Domain: storeDomain, Token: 7}, Nonce: idem.NewNonce()}
		b.kept(b.rerun(idem.ClientKey, gone), idem.StateNone)
		b.issue(time.Hour)
		b.kept(b.rerun(idem.IssuedToken, idem.Attempt{}), idem.StateIssued)
	}},
	{name: "an open attempt is not begun over without it", run: func(b *storeBench) {
		b.inDoubt(idem.ClientKey, 10)
		b.kept(b.request(idem.ClientKey), idem.StateUnknown)
	}},
	{name: "an Abort leaves it unknown", run: func(b *storeBench) {
		for _, kind := range []idem.KeyKind{idem.ClientKey, idem.IssuedToken} {
			for _, size := range []int{-1, 10, 4096} {
				for _, arrived := range []bool{true, false} {
					first := b.inDoubt(kind, size)
					before := b.get()
					req := b.rerun(kind, first)
					if arrived {
						b.begun(req)
					}
					b.abort(req)
					rec := b.in(idem.StateUnknown, 2)
					want := before
					want.State, want.Response, want.Started, want.Settled = idem.StateUnknown, nil, rec.Started, rec.Settled
					want.Attempt = idem.Attempt{Number: 2, Fence: req.Fence, Nonce: req.Nonce}
					if diff := differ(rec, want); diff != "" || rec.Settled.IsZero() {
						b.Errorf("Get(%v) after the Abort of a Begin that arrived (%v): %s", b.id, arrived, diff)
					}
					b.isOpen(true)
					b.abortAgain(req)
					b.kept(req, idem.StateUnknown)
					b.kept(b.request(kind), idem.StateUnknown)
					b.settleAgain(settlement(first, idem.StateReleased), false)
					next := b.begun(b.rerun(kind, rec.Attempt))
					b.abortAgain(req)
					b.settle(settlement(next, idem.StateCompleted), true)
					b.abortAgain(req)
				}
			}
		}
	}},
	{name: "an Abort changes nothing else", run: func(b *storeBench) {
		early := b.request(idem.ClientKey)
		first := b.inDoubt(idem.ClientKey, 10)
		early.RunAgainFrom = &first
		b.abortAgain(early) // under a lower fence
		other := first
		other.Nonce[0] ^= 1
		b.abortAgain(b.rerun(idem.ClientKey, other))
		b.abortAgain(b.rerun(idem.IssuedToken, first))
		req := b.rerun(idem.ClientKey, first)
		b.settle(decision(first, idem.StateReleased), true)
		b.abortAgain(req)
		b.id = randomKeyID()
		b.abortAgain(req)
		b.in(idem.StateNone, 0)
	}},
	{name: "a settled one is not aborted", run: func(b *storeBench) {
		first := b.inDoubt(idem.ClientKey, 10)
		req := b.rerun(idem.ClientKey, first)
		a := b.begun(req)
		b.settle(settlement(a, idem.StateUnknown), true)
		b.abortAgain(req)
		b.settle(settlement(a, idem.StateCompleted), true)
		b.abortAgain(req)
	}},
}

// inDoubt makes a key with a first attempt in doubt. It is pending for a negative size, and
// otherwise unknown with a response of so many bytes.
func (b *storeBench) inDoubt(kind idem.KeyKind, size int) idem.Attempt {
	b.Helper()
	b.id = randomKeyID()
	if kind == idem.IssuedToken {
		b.issue(time.Hour)
	}
	a, _ := b.start(kind)
	if size >= 0 {
		s := settlement(a, idem.StateUnknown)
		s.Response = &idem.Response{Status: 502, Body: bytes.Repeat([]byte("x"), size)}
		b.settle(s, true)
	}
	return a
}

// rerun returns the Begin of an attempt that starts over from another.
func (b *storeBench) rerun(kind idem.KeyKind, from idem.Attempt) idem.BeginRequest {
	req := b.request(kind)
	req.RunAgainFrom = &from
	return req
}
