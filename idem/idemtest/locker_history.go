package idemtest

import (
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// lockerHistoryTests are about a lock service that came back with older data. A Locker that is no
// [driver.HistoryLocker] passes them.
var lockerHistoryTests = []lockerTest{
	{"a fence that the service has renews no domain", func(b *lockerBench) {
		l, ok := b.b.(driver.HistoryLocker)
		if !ok {
			return
		}
		seen := b.take(b.a, b.id).Fence()
		b.renew(l, seen, false)
		lower := seen
		lower.Token--
		b.renew(l, lower, false)
		if f := b.take(b.b, b.other).Fence(); f.Domain != seen.Domain {
			b.Errorf("Fence() = %s after %s, want the same domain", f, seen)
		}
	}},
	{"a fence that the service lacks renews the domain once, for all clients", func(b *lockerBench) {
		first, ok := b.a.(driver.HistoryLocker)
		if !ok {
			return
		}
		second := b.b.(driver.HistoryLocker)
		held := b.take(b.a, b.id)
		was := held.Fence()
		seen := driver.Fence{Domain: was.Domain, Token: was.Token + 1<<40}
		var all sync.WaitGroup
		for _, l := range []driver.HistoryLocker{first, second, first, second} {
			all.Go(func() { b.renew(l, seen, true) })
		}
		all.Wait()
		b.renew(second, seen, true)
		if held.Fence() != was || held.Err() != nil {
			b.Errorf("the lease from before has fence %s and error %v, want %s and none", held.Fence(), held.Err(), was)
		}
		fences := []driver.Fence{b.fresh(b.a), b.fresh(b.b)}
		for end := time.Now().Add(b.h.Timeout); fences[0].Domain != fences[1].Domain && time.Now().Before(end); {
			fences = []driver.Fence{b.fresh(b.a), b.fresh(b.b)}
		}
		if fences[0].Domain == was.Domain || fences[0].Domain != fences[1].Domain {
			b.Errorf("new leases have the fences %s, want one domain, and not %s", fences, was.Domain)
		}
		b.renew(first, fences[1], false)
	}},
}

// fresh is the fence of a lease of another key.
func (b *lockerBench) fresh(l driver.Locker) driver.Fence {
	b.Helper()
	lease := b.take(l, idem.NewKeyID("idemtest", idem.Key(driver.NewNonce().String())))
	defer b.release(lease)
	return lease.Fence()
}

func (b *lockerBench) renew(l driver.HistoryLocker, seen driver.Fence, want bool) {
	b.Helper()
	ctx, cancel := b.bounded()
	defer cancel()
	if renewed, err := l.RenewDomain(ctx, seen); renewed != want || err != nil {
		b.Errorf("RenewDomain(%s) = %v, %v; want %v", seen, renewed, err, want)
	}
}
