package driver

import (
	"context"
	"time"
)

// A LockingStore is a [Store] that can take and give back the lock of a key in the same call as its
// record, if both are in one place. An execution then takes two round trips in place of four. The
// rules of [Store] and [Locker] stay as they are. Only the trips are shared. The engine uses the calls below
// if the LockSpace of its store equals that of its locker. Operators, the sweeper and
// everything out of the ordinary use those of Store and Locker.
type LockingStore interface {
	Store

	// LockSpace is a comparable value that names the place of the locks, or nil if the store can take
	// none.
	LockSpace() any

	// BeginLocked does what these steps do one after the other, at one moment. The fence of the request and its
	// RunAgainFrom are not used.
	//
	//  1. Look at the record. If no attempt may begin from it whatever the fence, return the record. Its
	//     answer says whether another owner has the lock.
	//  2. Take the lock as [Locker].TryAcquire does. If another owner has it, return the record, and Locked.
	//  3. Begin under the fence of the lock. If that is refused, give the lock back, and return the record.
	//
	// Begun says that lock and attempt are there, under Record.Attempt.Fence. Otherwise the call has changed nothing.
	//
	// A second copy of the call does nothing more if the first one has begun, and its answer is that of the first
	// one. A copy that comes after the attempt is over, or some seconds late by the clock of the store, does nothing.
	//
	// After ErrStoreLost, ErrNewerRecord and ErrCorruptRecord the call had no effect, and neither if an error comes with a
	// record and without Begun. After any other error it may have taken effect or may take it yet, see
	// [LockOffer].Retake.
	BeginLocked(ctx context.Context, id KeyID, req BeginRequest, lock OfferedLock) (LockedBegin, error)

	// SettleUnlock is Settle, and gives the lock back in the same step if the settlement stands and the lock still
	// belongs to its owner. If the lock does not, the settlement counts as one without LeaseTrusted.
	SettleUnlock(ctx context.Context, id KeyID, s Settlement, lock OfferedLock) (SettleResult, error)
}

// LockedBegin is the answer of BeginLocked.
type LockedBegin struct {
	BeginResult
	Locked bool // another owner has the lock
}

// OfferedLock is what a store needs to know of a lock that it takes or gives back.
type OfferedLock struct {
	Owner string        // of this lock and no other one
	Nonce Nonce         // of the attempt
	Note  string        // for people who inspect the lock; no space in it
	TTL   time.Duration // how long the lock lives unless it is renewed
}

// OfferingLocker is a [Locker] whose locks a [LockingStore] can take.
type OfferingLocker interface {
	Locker

	// LockSpace is that of the stores which can take the locks.
	LockSpace() any

	// Offer returns a lock for a store to take at once. It makes no round trip. The error wraps ErrUnavailable.
	// The caller ends each offer by Taken, NotTaken or Retake.
	Offer(ctx context.Context, req LockRequest) (LockOffer, error)
}

// LockOffer is a lock that a store may take. It is for one goroutine.
type LockOffer interface {
	// Lock is what the store is told.
	Lock() OfferedLock

	// Taken returns the lease of the lock that the store has taken. If it comes too late to be trusted, the error
	// wraps ErrUnavailable, and the caller goes on with Retake.
	Taken(f Fence) (OfferedLease, error)

	// NotTaken says that no lease comes of the offer. err is nil, or says why the store could not be asked or did not answer. Retake may follow
	// then.
	NotTaken(err error)

	// Retake takes the lock by its owner after a BeginLocked without an answer, in one round trip. If the store had taken it,
	// the lease has the fence of then. Otherwise the lease shows that the call had not come, and a copy
	// that comes while it is held finds the lock taken. The error wraps ErrLocked or ErrUnavailable. It may be called again after an error, and not after the
	// lease was given back, because a copy of that call may come yet.
	Retake(ctx context.Context) (OfferedLease, error)
}

// OfferedLease is a [Lease] whose lock a [LockingStore] can give back.
type OfferedLease interface {
	Lease

	// Lock is what the store is told.
	Lock() OfferedLock

	// Returned says that the store has given the lock back.
	Returned()
}
