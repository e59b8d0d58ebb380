package simulate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tests/simulate/simstore"
)

// This file has what differs in plans whose processes take lock and record of a key in one call. Their locks are in the
// store, and live for a session.

// combinedFaults are those of the store, and of the processes that use it.
var combinedFaults = []FaultKind{MuteStore, MuteStore, StoreDown, StoreStalls, StoreStalls, StoreFull, CrashProcess, PauseProcess,
	StoreFallsBack, StoreFallsBack, StoreClockAhead, StoreClockBack}

// combine makes the processes of a plan take lock and record in one call, and most faults hit the store.
//
// A fail-over loses locks, and so does a clock that jumps ahead. Then two handlers of one key may run, as package
// lock/redis says. If the records are still there, as after a jump, a ledger that checks fences has one payment all
// the same.
func (p *Plan) combine(d dice) {
	p.Combined, p.Markers = true, false
	jumps := p.Fenced && d.one(2) // a fence may fall back if the clock was wrong and the latest fences are lost
	for i := range p.Faults {
		f := &p.Faults[i]
		ofStore := f.Kind == CrashProcess || f.Kind == PauseProcess || f.Kind >= StoreDown && f.Kind < Stall || f.Kind > Stall && f.Kind < RestoreServers
		if !ofStore && !d.one(4) || f.Kind == RestoreServers {
			f.Kind = combinedFaults[d.IntN(len(combinedFaults))]
		}
		switch f.Kind {
		case StoreLosesAll:
			f.Kind = StoreFallsBack
		case PauseProcess:
			if !p.Fenced {
				f.Kind = MuteStore
			}
		case StoreClockAhead, StoreClockBack:
			if !jumps {
				f.Kind = StoreFallsBack
			}
		}
		if f.Kind == StoreFallsBack && jumps {
			f.Kind = StoreStalls
		}
	}
}

// mayRepeat reports whether a key may have run again, because a fail-over has lost its record and its lock.
func (j *judge) mayRepeat(key int) bool { return j.w.plan.Combined && j.shaken[key] }

// stepClock makes the store's clock wrong.
func (w *world) stepClock(offset time.Duration, accept bool) {
	if ahead := w.store.StepClock(offset, accept); ahead {
		w.leases.forget(nil, true)
	}
}

// fallBack is a fail-over of the store.
func (w *world) fallBack(d time.Duration) {
	lost := w.store.FallBack(d)
	w.judge.lost(lost)
	w.leases.forget(lost, false)
}

// BeginLocked implements driver.LockingStore.
func (s overseenStore) BeginLocked(ctx context.Context, id driver.KeyID, req driver.BeginRequest, l driver.OfferedLock) (driver.LockedBegin, error) {
	res, err := s.Client.BeginLocked(ctx, id, req, l)
	if res.Begun || err != nil {
		s.p.w.begun.add(req.Nonce, err == nil)
	}
	if err != nil && !errors.Is(err, driver.ErrStoreLost) && !errors.Is(err, driver.ErrNoWrites) {
		s.p.owes.add(req.Nonce)
	}
	return res, err
}

// SettleUnlock implements driver.LockingStore. From when it is sent, the lock may be gone.
func (s overseenStore) SettleUnlock(ctx context.Context, id driver.KeyID, st driver.Settlement, l driver.OfferedLock) (driver.SettleResult, error) {
	s.p.w.leases.settles(id, l.Owner, true)
	res, err := s.Client.SettleUnlock(ctx, id, st, l)
	if err == nil && !res.Settled {
		s.p.w.leases.settles(id, l.Owner, false)
	}
	return res, err
}

// settles notes whether a settlement is on its way that gives back the lock of an owner.
func (ls *leases) settles(id driver.KeyID, owner string, does bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, b := range ls.held[lockOf(id)] {
		if l, ok := b.lease.(*simstore.Lease); ok && l.Lock().Owner == owner {
			b.settles = does
		}
	}
}

// owed are calls without an answer, which an engine has to undo.
type owed struct {
	mu     sync.Mutex
	nonces map[driver.Nonce]bool
}

func (o *owed) add(n driver.Nonce) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.nonces == nil {
		o.nonces = make(map[driver.Nonce]bool)
	}
	o.nonces[n] = true
}

func (o *owed) done(n driver.Nonce) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.nonces, n)
}

func (o *owed) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.nonces)
}

// overseenLocks is the locker of a process with combined calls, under the eyes of the judge.
type overseenLocks struct {
	*simstore.Locker
	p *process
}

// TryAcquire implements driver.Locker.
func (o overseenLocks) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	l, err := o.Locker.TryAcquire(ctx, req)
	if err != nil {
		return nil, err
	}
	return o.p.believes(req.KeyID, l.(*simstore.Lease)), nil
}

// Offer implements driver.OfferingLocker.
func (o overseenLocks) Offer(ctx context.Context, req driver.LockRequest) (driver.LockOffer, error) {
	offer, err := o.Locker.Offer(ctx, req)
	return overseenOffer{offer, o.p, req.KeyID}, err
}

type overseenOffer struct {
	driver.LockOffer
	p  *process
	id driver.KeyID
}

// Taken implements driver.LockOffer.
func (o overseenOffer) Taken(f driver.Fence) (driver.OfferedLease, error) {
	l, err := o.LockOffer.Taken(f)
	if err != nil {
		o.p.owes.add(o.Lock().Nonce)
		return nil, err
	}
	return o.p.believes(o.id, l.(*simstore.Lease)), nil
}

// Retake implements driver.LockOffer.
func (o overseenOffer) Retake(ctx context.Context) (driver.OfferedLease, error) {
	o.p.owes.done(o.Lock().Nonce)
	l, err := o.LockOffer.Retake(ctx)
	if err != nil {
		return nil, err
	}
	return o.p.believes(o.id, l.(*simstore.Lease)), nil
}

// believes takes a lease of the process into view.
func (p *process) believes(id driver.KeyID, l *simstore.Lease) driver.OfferedLease {
	b := &belief{p: p, lease: l, holders: exclusive, since: l.Asked}
	return &combinedLease{l, p, id, b, p.w.leases.believed(lockOf(id), b)}
}

// combinedLease is a lease under the eyes of the judge.
type combinedLease struct {
	*simstore.Lease
	p      *process
	id     driver.KeyID
	belief *belief
	forget func()
}

// Release implements driver.Lease.
func (l *combinedLease) Release(ctx context.Context) error {
	l.forget()
	givenBack(l.p, l.id, l.Lease)
	return l.Lease.Release(ctx)
}

// ReleaseInBackground implements driver.Lease.
func (l *combinedLease) ReleaseInBackground() {
	l.forget()
	givenBack(l.p, l.id, l.Lease)
	l.Lease.ReleaseInBackground()
}

// Returned implements driver.OfferedLease. The store has given the lock back, unless a fail-over has undone that since.
func (l *combinedLease) Returned() {
	l.forget()
	if holder := l.p.w.store.Holder(l.id); holder == l.Fence() && !l.p.w.leases.undone(l.id, l.belief) {
		l.p.w.failf("%s takes the lock with fence %v for given back, and it is not", l.p.host, holder)
	}
	l.Lease.Returned()
}
