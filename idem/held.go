package idem

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// held is a lease of the lock of a key. It is the owner of an execution and a claim.
type held struct {
	driver.Lease
	mode       *lockMode
	nonce      driver.Nonce        // under which it was taken, and of the attempt that begins under it
	offered    driver.OfferedLease // the same lease if the store can give it back, or nil
	handedOver bool                // whoever sets it has released the lock, or will; letGo leaves it alone then
}

// settle settles the attempt under the lease. In combined mode that gives the lock back too.
func (l *held) settle(ctx context.Context, id driver.KeyID, s driver.Settlement) (driver.SettleResult, error) {
	if l.offered == nil {
		return l.mode.store.Settle(ctx, id, s)
	}
	return l.settleUnlock(ctx, id, s)
}

// letGo releases the lock in the background, unless another step does or has.
func (l *held) letGo() {
	if !l.handedOver {
		l.handedOver = true
		l.ReleaseInBackground()
	}
}

// watch tells the execution of a loss with cause ErrLeaseLost. A lease that panics counts as lost.
func (l *held) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	go func() {
		lost := false
		if err := guarded(func() {
			select {
			case <-l.Done():
				lost = l.Err() != nil
			case <-ctx.Done():
			}
		}); err != nil || lost {
			cancel(driver.ErrLeaseLost)
		}
	}()
}

func (m *lockMode) claim(ctx context.Context, r *request) (claim, error) {
	lease, err := m.lock(ctx, r)
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// record compares the record with the marker that the lock service has.
func (l *held) record(ctx context.Context, r *request) (driver.Record, error) {
	if rec, _, _, err := l.mode.heed(ctx, r, l); err != nil {
		return rec, err
	}
	return l.mode.read(ctx, r)
}

// outlives returns nil if the lease is later than an attempt in the same domain, or if the other
// domain is retired.
func (l *held) outlives(ctx context.Context, r *request, open driver.Attempt) error {
	fence, theirs := l.Fence(), open.Fence
	if theirs.Domain != fence.Domain {
		return l.mode.foreign(ctx, theirs)
	}
	if theirs.Before(fence) {
		return nil
	}
	renewed, err := l.mode.renewDomain(ctx, r, theirs)
	if renewed { // the next lease proves nothing about the holder
		return refuse(CodeInProgress, fmt.Errorf("%w: %v", ErrForeignDomain, theirs))
	}
	return withCause(refuse(CodeOwnershipLost, fmt.Errorf("idem: fence %v is not above the record's %v", fence, theirs)), err)
}

// giveBack leaves a marker according to the record and releases the lock.
func (l *held) giveBack(ctx context.Context, r *request, rec *driver.Record) {
	mark(l, rec)
	l.mode.release(ctx, r, l, rec.Attempt)
}

func (m *lockMode) seen(_ context.Context, _ driver.KeyID, stored driver.Record) (driver.Record, error) {
	return stored, nil
}

func (m *lockMode) transactional() bool { return false }

func (m *lockMode) lockedBy() driver.Locker { return m.locker }

func (m *lockMode) inspector() driver.LockInspector {
	in, _ := m.locker.(driver.LockInspector)
	return in
}

func (m *lockMode) ping(ctx context.Context) error { return m.locker.Ping(ctx) }
