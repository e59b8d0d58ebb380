package idemtest

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// storeFenceTests are about the comparison of fences.
var storeFenceTests = []storeTest{
	{name: "a lower fence is stale in every state", run: func(b *storeBench) {
		for _, state := range []idem.State{idem.StatePending, idem.StateCompleted, idem.StateReleased, idem.StateUnknown} {
			b.id = randomKeyID()
			late := b.request(idem.ClientKey)
			a, _ := b.start(idem.ClientKey)
			if state != idem.StatePending {
				b.settle(settlement(a, state), true)
			}
			b.stale(late)
		}
	}},
	{name: "a lower fence is stale for a token", run: func(b *storeBench) {
		b.issue(time.Hour)
		late := b.request(idem.IssuedToken)
		a, _ := b.start(idem.IssuedToken)
		b.settle(settlement(a, idem.StateReleased), true)
		b.stale(late)
	}},
	{name: "the same fence is stale once its attempt is over", run: func(b *storeBench) {
		for _, state := range []idem.State{idem.StateCompleted, idem.StateReleased} {
			b.id = randomKeyID()
			a, req := b.start(idem.ClientKey)
			b.settle(settlement(a, state), true)
			b.stale(req)
			b.stale(storeRequest(idem.ClientKey, storeDomain, a.Fence.Token))
		}
	}},
	{name: "the same fence is not stale while its attempt is open", run: func(b *storeBench) {
		a, req := b.start(idem.ClientKey)
		b.settle(settlement(a, idem.StateUnknown), true)
		b.kept(req, idem.StateUnknown)
	}},
	{name: "fences of different domains are not compared", run: func(b *storeBench) {
		a, _ := b.start(idem.ClientKey)
		b.settle(settlement(a, idem.StateReleased), true)
		second := b.begun(storeRequest(idem.ClientKey, "foreign", 1))
		b.settle(settlement(second, idem.StateReleased), true)
		b.begun(storeRequest(idem.ClientKey, storeDomain, 1))
	}},
	{name: "fences are compared to their last bit", run: func(b *storeBench) {
		for _, low := range []uint64{
			1, math.MaxUint8, math.MaxUint16, math.MaxUint32, 1<<53 - 1, 1 << 53, 1<<53 + 1, 0x00aa_00ff_ffff_ffff,
			1<<62 + 0xa, math.MaxInt64, 0x9fff_ffff_ffff_ffff, math.MaxUint64 - 2, math.MaxUint64 - 1,
		} {
			b.Run(fmt.Sprint(low), func(t *testing.T) {
				b := newStoreBench(t, b.h)
				first := b.begun(storeRequest(idem.ClientKey, storeDomain, low))
				b.settle(settlement(first, idem.StateReleased), true)
				second := b.begun(storeRequest(idem.ClientKey, storeDomain, low+1))
				if second.Fence.Token != low+1 || second.Number != 2 {
					b.Errorf("Begin(%v, fence %d) = fence %d, attempt %d", b.id, low+1, second.Fence.Token, second.Number)
				}
				b.stale(storeRequest(idem.ClientKey, storeDomain, low))
				b.settle(settlement(second, idem.StateReleased), true)
				b.stale(storeRequest(idem.ClientKey, storeDomain, low))
				b.stale(storeRequest(idem.ClientKey, storeDomain, low+1))
			})
		}
	}},
	{name: "an attempt is compared whole", run: func(b *storeBench) {
		a := b.begun(storeRequest(idem.ClientKey, storeDomain, 1<<60+1))
		for name, other := range map[string]func(*idem.Attempt){
			"number":     func(a *idem.Attempt) { a.Number++ },
			"fence":      func(a *idem.Attempt) { a.Fence.Token-- },
			"domain":     func(a *idem.Attempt) { a.Fence.Domain = "foreign" },
			"first byte": func(a *idem.Attempt) { a.Nonce[0] ^= 1 },
			"last byte":  func(a *idem.Attempt) { a.Nonce[15] ^= 1 },
		} {
			wrong := a
			other(&wrong)
			s := settlement(a, idem.StateCompleted)
			s.Attempt = wrong
			b.Logf("with another %s", name)
			b.settleAgain(s, false)
		}
		b.settle(settlement(a, idem.StateCompleted), true)
	}},
	{name: "an attempt of another domain is another one", run: func(b *storeBench) {
		_, req := b.start(idem.ClientKey)
		req.Fence.Domain = "foreign"
		b.kept(req, idem.StatePending)
		b.abortAgain(req)
	}},
	{name: "nonces may hold any bytes", run: func(b *storeBench) {
		req := b.request(idem.ClientKey)
		req.Nonce = idem.Nonce{0, 0xff, '\n', '\r', 0x80, '"', '\\', '%', 0}
		a := b.begun(req)
		s := settlement(a, idem.StateUnknown)
		s.ID = idem.Nonce{15: 1}
		b.settle(s, true)
		b.settleAgain(s, true)
	}},
}
