package idemtest

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// storeFenceTests are about the comparison of fences.
var storeFenceTests = []storeTest{
	{name: "a lower fence is stale in every state", run: func(b *storeBench) {
		for _, state := range []driver.State{driver.StatePending, driver.StateCompleted, driver.StateReleased, driver.StateUnknown} {
			b.id = randomKeyID()
			late := b.request(driver.ClientKey)
			a, _ := b.start(driver.ClientKey)
			if state != driver.StatePending {
				b.settle(settlement(a, state), true)
			}
			b.stale(late)
		}
	}},
	{name: "a lower fence is stale for a token", run: func(b *storeBench) {
		b.issue(time.Hour)
		late := b.request(driver.IssuedToken)
		a, _ := b.start(driver.IssuedToken)
		b.settle(settlement(a, driver.StateReleased), true)
		b.stale(late)
	}},
	{name: "the same fence is stale once its attempt is over", run: func(b *storeBench) {
		for _, state := range []driver.State{driver.StateCompleted, driver.StateReleased} {
			b.id = randomKeyID()
			a, req := b.start(driver.ClientKey)
			b.settle(settlement(a, state), true)
			b.stale(req)
			b.stale(storeRequest(driver.ClientKey, storeDomain, a.Fence.Token))
		}
	}},
	{name: "the same fence is not stale while its attempt is open", run: func(b *storeBench) {
		a, req := b.start(driver.ClientKey)
		b.settle(settlement(a, driver.StateUnknown), true)
		b.kept(req, driver.StateUnknown)
	}},
	{name: "fences of different domains are not compared", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		b.settle(settlement(a, driver.StateReleased), true)
		second := b.begun(storeRequest(driver.ClientKey, "foreign", 1))
		b.settle(settlement(second, driver.StateReleased), true)
		b.begun(storeRequest(driver.ClientKey, storeDomain, 1))
	}},
	{name: "fences are compared to their last bit", run: func(b *storeBench) {
		for _, low := range []uint64{
			1, math.MaxUint8, math.MaxUint16, math.MaxUint32, 1<<53 - 1, 1 << 53, 1<<53 + 1, 0x00aa_00ff_ffff_ffff,
			1<<62 + 0xa, math.MaxInt64, 0x9fff_ffff_ffff_ffff, math.MaxUint64 - 2, math.MaxUint64 - 1,
		} {
			b.Run(fmt.Sprint(low), func(t *testing.T) {
				b := newStoreBench(t, b.h)
				first := b.begun(storeRequest(driver.ClientKey, storeDomain, low))
				b.settle(settlement(first, driver.StateReleased), true)
				second := b.begun(storeRequest(driver.ClientKey, storeDomain, low+1))
				if second.Fence.Token != low+1 || second.Number != 2 {
					b.Errorf("Begin(%v, fence %d) = fence %d, attempt %d", b.id, low+1, second.Fence.Token, second.Number)
				}
				b.stale(storeRequest(driver.ClientKey, storeDomain, low))
				b.settle(settlement(second, driver.StateReleased), true)
				b.stale(storeRequest(driver.ClientKey, storeDomain, low))
				b.stale(storeRequest(driver.ClientKey, storeDomain, low+1))
			})
		}
	}},
	{name: "an attempt is compared whole", run: func(b *storeBench) {
		a := b.begun(storeRequest(driver.ClientKey, storeDomain, 1<<60+1))
		for name, other := range map[string]func(*driver.Attempt){
			"number":     func(a *driver.Attempt) { a.Number++ },
			"fence":      func(a *driver.Attempt) { a.Fence.Token-- },
			"domain":     func(a *driver.Attempt) { a.Fence.Domain = "foreign" },
			"first byte": func(a *driver.Attempt) { a.Nonce[0] ^= 1 },
			"last byte":  func(a *driver.Attempt) { a.Nonce[15] ^= 1 },
		} {
			wrong := a
			other(&wrong)
			s := settlement(a, driver.StateCompleted)
			s.Attempt = wrong
			b.Logf("with another %s", name)
			b.settleAgain(s, false)
		}
		b.settle(settlement(a, driver.StateCompleted), true)
	}},
	{name: "an attempt of another domain is another one", run: func(b *storeBench) {
		_, req := b.start(driver.ClientKey)
		req.Fence.Domain = "foreign"
		b.kept(req, driver.StatePending)
		b.abortAgain(req)
	}},
	{name: "nonces may hold any bytes", run: func(b *storeBench) {
		req := b.request(driver.ClientKey)
		req.Nonce = driver.Nonce{0, 0xff, '\n', '\r', 0x80, '"', '\\', '%', 0}
		a := b.begun(req)
		s := settlement(a, driver.StateUnknown)
		s.ID = driver.Nonce{15: 1}
		b.settle(s, true)
		b.settleAgain(s, true)
	}},
}
