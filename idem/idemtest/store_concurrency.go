package idemtest

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// storeCallers is how many goroutines call at once.
const storeCallers = 32

// storeConcurrencyTests call from many goroutines at once.
var storeConcurrencyTests = []storeTest{
	{name: "one of many begins", run: func(b *storeBench) {
		for _, kind := range []driver.KeyKind{driver.ClientKey, driver.IssuedToken} {
			for range 2 {
				// With a fence for each caller, most calls are refused as stale. With one fence
				// for all, every call gets to the state of the record.
				b.oneBegins(kind, func() uint64 { b.token++; return b.token })
				b.oneBegins(kind, func() uint64 { return b.token })
			}
		}
	}},
	{name: "one attempt begins once however often it is sent", run: func(b *storeBench) {
		req := b.request(driver.ClientKey)
		together(func(int) {
			if res, err := b.s.Begin(b.ctx, b.id, req); err != nil || !res.Begun {
				b.Errorf("Begin(%v) = %s, %v, want begun", b.id, describeBegin(res), err)
			}
		})
		b.in(driver.StatePending, 1)
	}},
	{name: "one of many settles", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		var settled atomic.Int32
		together(func(i int) {
			state := driver.StateCompleted
			if i%2 == 0 {
				state = driver.StateReleased
			}
			s := decision(a, state)
			for range 2 { // the second is the first, sent again
				res, err := b.s.Settle(b.ctx, b.id, s)
				if err != nil {
					b.Errorf("Settle(%v) = %v, want <nil>", b.id, err)
				}
				if res.Settled {
					settled.Add(1)
				}
			}
		})
		if n := settled.Load(); n != 2 {
			b.Errorf("Settle(%v) by %d at once = settled %d times, want one of them, twice", b.id, storeCallers, n)
		}
		b.isOpen(false)
	}},
	{name: "an Abort beats its Begin in any order", run: func(b *storeBench) {
		for range 5 {
			b.id = randomKeyID()
			req := b.request(driver.ClientKey)
			together(func(i int) {
				if i%2 == 0 {
					if _, err := b.s.Begin(b.ctx, b.id, req); err != nil && !errors.Is(err, driver.ErrStaleFence) {
						b.Errorf("Begin(%v) = %v, want <nil> or %v", b.id, err, driver.ErrStaleFence)
					}
				} else if err := b.s.Abort(b.ctx, b.id, req); err != nil {
					b.Errorf("Abort(%v) = %v, want <nil>", b.id, err)
				}
			})
			b.in(driver.StateReleased, 0)
			b.isOpen(false)
		}
	}},
	{name: "attempts follow each other without a gap", run: func(b *storeBench) {
		var ran atomic.Uint32
		requests := make([]driver.BeginRequest, storeCallers)
		for i := range requests {
			requests[i] = b.request(driver.ClientKey)
		}
		together(func(i int) {
			res, err := b.s.Begin(b.ctx, b.id, requests[i])
			if err != nil || !res.Begun {
				return
			}
			ran.Add(1)
			if got, err := b.s.Settle(b.ctx, b.id, settlement(res.Record.Attempt, driver.StateReleased)); err != nil || !got.Settled {
				b.Errorf("Settle(%v, released) = %v, %v, want settled", b.id, got.Settled, err)
			}
		})
		b.in(driver.StateReleased, ran.Load())
	}},
}

// oneBegins starts many attempts at once. Exactly one has to begin.
func (b *storeBench) oneBegins(kind driver.KeyKind, token func() uint64) {
	b.Helper()
	b.id = randomKeyID()
	if kind == driver.IssuedToken {
		b.issue(time.Hour)
	}
	requests := make([]driver.BeginRequest, storeCallers)
	for i := range requests {
		requests[i] = storeRequest(kind, storeDomain, token())
	}
	var begun atomic.Int32
	var winner atomic.Pointer[driver.Nonce]
	together(func(i int) {
		res, err := b.s.Begin(b.ctx, b.id, requests[i])
		if err != nil && !errors.Is(err, driver.ErrStaleFence) {
			b.Errorf("Begin(%v) = %v, want <nil> or %v", b.id, err, driver.ErrStaleFence)
		}
		if res.Begun {
			begun.Add(1)
			winner.Store(&requests[i].Nonce)
		}
	})
	if n := begun.Load(); n != 1 {
		b.Fatalf("Begin(%v) by %d at once = %d begun, want 1", b.id, storeCallers, n)
	}
	if rec := b.in(driver.StatePending, 1); rec.Attempt.Nonce != *winner.Load() {
		b.Errorf("Get(%v) = attempt %v, want the one that was told it had begun, %v", b.id, rec.Attempt.Nonce, *winner.Load())
	}
}

// together runs f in storeCallers goroutines at once.
func together(f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range storeCallers {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}
