package idemtest

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// RunLockingStore runs the conformance suite of [driver.LockingStore] and [driver.OfferingLocker], a subtest for each
// behaviour. open returns an empty store and a locker with the same LockSpace, and arranges their end. Both also have to
// pass [RunStore] and [RunLocker]. Run it with the race detector.
func RunLockingStore(t *testing.T, open func(tb testing.TB) (driver.OfferingLocker, driver.LockingStore)) {
	t.Helper()
	for _, tt := range lockingTests {
		t.Run(tt.name, func(t *testing.T) {
			b := &lockingBench{storeBench: storeBench{T: t, ctx: t.Context(), id: randomKeyID()}}
			b.locker, b.store = open(t)
			b.s = b.store
			if space := b.store.LockSpace(); space == nil || space != b.locker.LockSpace() {
				t.Fatalf("LockSpace() of the store = %v, and of the locker %v, want the same", space, b.locker.LockSpace())
			}
			tt.run(b)
		})
	}
}

type lockingTest struct {
	name string
	run  func(b *lockingBench)
}

type lockingBench struct {
	storeBench
	locker driver.OfferingLocker
	store  driver.LockingStore
}

// offered is a request and the lock that is offered with it.
type offered struct {
	offer driver.LockOffer
	req   driver.BeginRequest
}

func (b *lockingBench) offer(kind driver.KeyKind) offered {
	b.Helper()
	b.get() // a store may need a first answer
	req := storeRequest(kind, "", 0)
	req.Fence = driver.Fence{}
	o, err := b.locker.Offer(b.ctx, driver.LockRequest{KeyID: b.id, Nonce: req.Nonce})
	if err != nil {
		b.Fatalf("Offer() = %v", err)
	}
	return offered{o, req}
}

func (b *lockingBench) send(o offered) driver.LockedBegin {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, storeTimeout)
	defer cancel()
	res, err := b.store.BeginLocked(ctx, b.id, o.req, o.offer.Lock())
	if err != nil {
		b.Fatalf("BeginLocked() = %v", err)
	}
	return res
}

// begin begins an attempt and returns it with its lease.
func (b *lockingBench) begin(kind driver.KeyKind) (driver.OfferedLease, driver.Record) {
	b.Helper()
	o := b.offer(kind)
	res := b.send(o)
	if !res.Begun || res.Locked || res.Record.State != driver.StatePending || res.Record.Attempt.Nonce != o.req.Nonce {
		b.Fatalf("BeginLocked() = %+v, want a pending attempt under nonce %v", res, o.req.Nonce)
	}
	lease, err := o.offer.Taken(res.Record.Attempt.Fence)
	if err != nil || lease.Fence() != res.Record.Attempt.Fence {
		b.Fatalf("Taken(%v) = %v, %v", res.Record.Attempt.Fence, lease, err)
	}
	return lease, res.Record
}

// wantNothing wants the record, and that neither lock nor attempt is there because of a call.
func (b *lockingBench) wantNothing(res driver.LockedBegin, locked bool) {
	b.Helper()
	if res.Begun || res.Locked != locked {
		b.Errorf("BeginLocked() = %+v, want nothing begun, and locked: %t", res, locked)
	}
	if got := b.get(); differ(got, res.Record) != "" {
		b.Errorf("the record is %+v after BeginLocked() = %+v", got, res.Record)
	}
	if !locked {
		b.wantFree()
	}
}

// wantFree wants the lock free at once, and not when its time to live is over.
func (b *lockingBench) wantFree() {
	b.Helper()
	lease, err := b.locker.TryAcquire(b.ctx, driver.LockRequest{KeyID: b.id, Nonce: driver.NewNonce()})
	if err != nil {
		b.Fatalf("TryAcquire() = %v, want a free lock", err)
	}
	b.release(lease)
}

func (b *lockingBench) wantHeld() {
	b.Helper()
	if _, err := b.locker.TryAcquire(b.ctx, driver.LockRequest{KeyID: b.id, Nonce: driver.NewNonce()}); !errors.Is(err, driver.ErrLocked) {
		b.Errorf("TryAcquire() = %v, want %v", err, driver.ErrLocked)
	}
}

// acquire takes the lock in the usual way, after a release in the background.
func (b *lockingBench) acquire() driver.Lease {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, storeTimeout)
	defer cancel()
	lease, err := driver.Acquire(ctx, b.locker, driver.LockRequest{KeyID: b.id, Nonce: driver.NewNonce()})
	if err != nil {
		b.Fatalf("Acquire() = %v, want a free lock", err)
	}
	return lease
}

func (b *lockingBench) settleUnlock(lease driver.OfferedLease, s driver.Settlement) driver.SettleResult {
	b.Helper()
	res, err := b.store.SettleUnlock(b.ctx, b.id, s, lease.Lock())
	if err != nil {
		b.Fatalf("SettleUnlock() = %v", err)
	}
	return res
}

func (b *lockingBench) release(lease driver.Lease) {
	b.Helper()
	if err := lease.Release(b.ctx); err != nil {
		b.Fatalf("Release() = %v", err)
	}
}

var lockingTests = []lockingTest{
	{"a fresh key begins under its lock", func(b *lockingBench) {
		_, rec := b.begin(driver.ClientKey)
		b.wantHeld()
		if got := b.get(); differ(got, rec) != "" {
			b.Errorf("the record is %+v, want %+v", got, rec)
		}
	}},
	{"a settlement gives the lock back", func(b *lockingBench) {
		for _, state := range []driver.State{driver.StateCompleted, driver.StateReleased, driver.StateUnknown} {
			b.id = randomKeyID()
			lease, rec := b.begin(driver.ClientKey)
			res := b.settleUnlock(lease, settlement(rec.Attempt, state))
			if !res.Settled || res.Record.State != state {
				b.Errorf("SettleUnlock(%v) = %+v", state, res)
			}
			lease.Returned()
			if err := lease.Release(b.ctx); err != nil || lease.Err() != nil {
				b.Errorf("after Returned: Release() = %v, Err() = %v", err, lease.Err())
			}
			b.wantFree()
			if again := b.settleUnlock(lease, settlement(rec.Attempt, state)); !again.Settled {
				b.Errorf("a copy of SettleUnlock(%v) = %+v, want the same answer", state, again)
			}
		}
	}},
	{"an answered key takes nothing", func(b *lockingBench) {
		lease, rec := b.begin(driver.ClientKey)
		b.settleUnlock(lease, settlement(rec.Attempt, driver.StateCompleted))
		lease.Returned()
		res := b.send(b.offer(driver.ClientKey))
		b.wantNothing(res, false)
		if res.Record.State != driver.StateCompleted || !sameResponse(res.Record.Response, storeResponse()) {
			b.Errorf("BeginLocked() = %+v, want the stored response", res.Record)
		}
	}},
	{"an answered key is answered under any lock", func(b *lockingBench) {
		lease, rec := b.begin(driver.ClientKey)
		b.settleUnlock(lease, settlement(rec.Attempt, driver.StateCompleted))
		lease.Returned()
		b.acquire()
		if res := b.send(b.offer(driver.ClientKey)); res.Begun || res.Locked || res.Record.State != driver.StateCompleted {
			b.Errorf("BeginLocked() = %+v, want the stored response", res)
		}
		b.wantHeld()
	}},
	{"a response of any length comes back", func(b *lockingBench) {
		lease, rec := b.begin(driver.ClientKey)
		s := settlement(rec.Attempt, driver.StateCompleted)
		s.Response.Body = make([]byte, 64<<10)
		b.settleUnlock(lease, s)
		lease.Returned()
		if res := b.send(b.offer(driver.ClientKey)); !sameResponse(res.Record.Response, s.Response) {
			b.Errorf("BeginLocked() has a response of %d bytes, want %d", res.Record.Response.Size(), s.Response.Size())
		}
	}},
	{"a lock of another owner", func(b *lockingBench) {
		other := b.acquire()
		b.wantNothing(b.send(b.offer(driver.ClientKey)), true)
		b.release(other)
		lease, _ := b.begin(driver.ClientKey)
		if !other.Fence().Before(lease.Fence()) {
			b.Errorf("fence %v after %v", lease.Fence(), other.Fence())
		}
		b.wantNothing(b.send(b.offer(driver.ClientKey)), true) // it runs there
	}},
	{"an interrupted attempt is left alone", func(b *lockingBench) {
		lease, _ := b.begin(driver.ClientKey)
		b.release(lease)
		res := b.send(b.offer(driver.ClientKey))
		b.wantNothing(res, false)
		if res.Record.State != driver.StatePending {
			b.Errorf("BeginLocked() = %+v, want the pending attempt", res.Record)
		}
	}},
	{"a released key begins the next attempt", func(b *lockingBench) {
		lease, first := b.begin(driver.ClientKey)
		b.settleUnlock(lease, settlement(first.Attempt, driver.StateReleased))
		lease.Returned()
		_, second := b.begin(driver.ClientKey)
		if second.Attempt.Number != 2 || !first.Attempt.Fence.Before(second.Attempt.Fence) {
			b.Errorf("the attempt after %+v is %+v", first.Attempt, second.Attempt)
		}
	}},
	{"a token has to be issued", func(b *lockingBench) {
		b.wantNothing(b.send(b.offer(driver.IssuedToken)), false)
		b.issue(time.Hour)
		b.wantNothing(b.send(b.offer(driver.ClientKey)), false)
		b.begin(driver.IssuedToken)
	}},
	{"a stale fence gives the lock back", func(b *lockingBench) {
		probe := b.acquire()
		b.release(probe)
		req := storeRequest(driver.ClientKey, probe.Fence().Domain, math.MaxInt64)
		began, err := b.s.Begin(b.ctx, b.id, req)
		if err != nil {
			b.Fatal(err)
		}
		b.settle(settlement(began.Record.Attempt, driver.StateReleased), true)
		b.wantNothing(b.send(b.offer(driver.ClientKey)), false)
	}},
	{"a copy of the call changes nothing", func(b *lockingBench) {
		o := b.offer(driver.ClientKey)
		first, second := b.send(o), b.send(o)
		if !second.Begun || second.Record.Attempt != first.Record.Attempt {
			b.Errorf("a copy of BeginLocked() = %+v, want %+v", second, first)
		}
	}},
	{"a call without an answer is undone", func(b *lockingBench) {
		o := b.offer(driver.ClientKey)
		rec := b.send(o).Record
		lease, err := o.offer.Retake(b.ctx)
		if err != nil || lease.Fence() != rec.Attempt.Fence {
			b.Fatalf("Retake() = %v, %v, want the lease under %v", lease, err, rec.Attempt.Fence)
		}
		b.undo(o, lease)
	}},
	{"a call that comes after it was undone does nothing", func(b *lockingBench) {
		o := b.offer(driver.ClientKey)
		lease, err := o.offer.Retake(b.ctx)
		if err != nil {
			b.Fatal(err)
		}
		b.wantNothing(b.send(o), true)
		b.undo(o, lease)
	}},
	{"a settlement without its lock leaves another owner's", func(b *lockingBench) {
		lease, rec := b.begin(driver.ClientKey)
		b.release(lease)
		other := b.acquire()
		if res := b.settleUnlock(lease, settlement(rec.Attempt, driver.StateCompleted)); !res.Settled {
			b.Errorf("SettleUnlock() = %+v, want the outcome", res)
		}
		b.wantHeld()
		if err := other.Err(); err != nil {
			b.Errorf("the other lease: %v", err)
		}
	}},
	{"a settlement without its lock is not trusted", func(b *lockingBench) {
		lease, rec := b.begin(driver.ClientKey)
		b.release(lease)
		s := settlement(rec.Attempt, driver.StateReleased)
		b.id = randomKeyID() // as if the store had lost the record
		s.LeaseTrusted, s.Repair = true, &driver.Repair{Kind: driver.ClientKey, Route: rec.Route, Fingerprint: rec.Fingerprint, Started: rec.Started}
		if res := b.settleUnlock(lease, s); res.Settled || res.Record.State != driver.StateNone {
			b.Errorf("SettleUnlock() = %+v, want no repair", res)
		}
	}},
	{"a settlement that does not stand keeps the lock", func(b *lockingBench) {
		lease, rec := b.begin(driver.ClientKey)
		b.settle(decision(rec.Attempt, driver.StateCompleted), true)
		if res := b.settleUnlock(lease, settlement(rec.Attempt, driver.StateCompleted)); res.Settled {
			b.Errorf("SettleUnlock() = %+v, want the decision", res)
		}
		b.wantHeld()
		b.release(lease)
		b.wantFree()
	}},
	{"one of many begins", func(b *lockingBench) {
		var begun atomic.Int32
		var all sync.WaitGroup
		for range 16 {
			o := b.offer(driver.ClientKey)
			all.Go(func() {
				if b.send(o).Begun {
					begun.Add(1)
				}
			})
		}
		all.Wait()
		if begun.Load() != 1 {
			b.Errorf("%d of 16 calls have begun, want 1", begun.Load())
		}
	}},
}

// undo undoes a call under the lease of its owner, and wants that a copy of the call does nothing from then on.
func (b *lockingBench) undo(o offered, lease driver.OfferedLease) {
	b.Helper()
	o.req.Fence = lease.Fence()
	b.abort(o.req)
	b.release(lease)
	if rec := b.get(); rec.State != driver.StateReleased {
		b.Errorf("the record is %+v after the undo, want released", rec)
	}
	b.wantNothing(b.send(o), false)
}
