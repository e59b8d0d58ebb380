package driver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strconv"
	"time"
)

// Facts that a [Locker] reports. Implementations wrap them with details.
var (
	// ErrLocked says that another owner holds the lock.
	ErrLocked = errors.New("idem: lock is held by another owner")
	// ErrLeaseLost says that a lease can no longer be trusted. The engine then cancels the
	// context of the running handler with this cause.
	ErrLeaseLost = errors.New("idem: lease lost")
	// ErrUnavailable says that the lock service or the token store could not
	// be reached, or did not answer in time.
	ErrUnavailable = errors.New("idem: lock or store unavailable")
)

// Fence is a fencing token. The number grows from one holder of a lock to the next. A resource
// that remembers the highest fence it has seen can refuse a holder that was paused past its
// lease (M. Kleppmann, "How to do distributed locking", 2016).
//
// Fences of different domains cannot be compared.
type Fence struct {
	Domain string // the lock domain, such as an ensemble, a Redis or a process; never empty
	Token  uint64 // grows within Domain; never 0
}

// Before reports whether f is earlier than g in the same domain. It is false for different
// domains.
func (f Fence) Before(g Fence) bool { return f.Domain == g.Domain && f.Token < g.Token }

// String returns "domain/token", for logs.
func (f Fence) String() string { return f.Domain + "/" + strconv.FormatUint(f.Token, 10) }

// Nonce names one attempt, so a repeated message can be recognised. It is random and never
// reused.
type Nonce [16]byte

// NewNonce returns a nonce from crypto/rand.
func NewNonce() Nonce {
	var n Nonce
	_, _ = rand.Read(n[:]) // never fails (crypto/rand, since Go 1.24)
	return n
}

// String returns the nonce in 32 lower-case hexadecimal digits.
func (n Nonce) String() string { return hex.EncodeToString(n[:]) }

// ParseNonce reads the text of [Nonce.String].
func ParseNonce(s string) (n Nonce, err error) {
	err = parseHex(n[:], "nonce", s)
	return n, err
}

// Visibility says who can see a lock or a record.
type Visibility uint8

const (
	// VisibilityShared means other processes can see it, as on a server.
	VisibilityShared Visibility = iota
	// VisibilityProcess means only this process can see it, or this process has claimed it for
	// itself.
	VisibilityProcess
)

// LockRequest names the lock to take and its new owner.
type LockRequest struct {
	KeyID KeyID // the key to lock
	Nonce Nonce // the attempt; kept with the lock to name its holder
}

// Locker hands out exclusive leases, one per key ID. It is safe for concurrent use. Every
// Locker has to pass the suite in package idemtest.
type Locker interface {
	// TryAcquire takes the lock, or returns ErrLocked at once if another owner holds it. After
	// any other error there is no lease. The Locker then undoes in the background what the
	// server may have applied. It fails at once with ErrUnavailable while it knows that the
	// lock service cannot be reached.
	//
	// ctx bounds the call only. Do not use it after the call, because a granted lease outlives
	// it.
	TryAcquire(ctx context.Context, req LockRequest) (Lease, error)

	// Wait returns nil after the lock looked free. That proves nothing, so the caller tries
	// again. Wait returns ctx.Err() if ctx ends first, and ErrUnavailable if it cannot ask the
	// service.
	Wait(ctx context.Context, id KeyID) error

	// Ping returns nil when the lock service can be reached right now.
	Ping(ctx context.Context) error

	// Visibility says who can see the locks.
	Visibility() Visibility
}

// Lease is a held lock. It is safe for concurrent use.
type Lease interface {
	// Fence is the fencing token of this lease. It is greater than that of every earlier lease
	// of the same key in the same domain.
	Fence() Fence

	// Done is closed when the lease was released or lost, or can no longer be trusted. It is
	// closed before another owner can hold the lock, as far as a running process can tell. A
	// paused process cannot.
	Done() <-chan struct{}

	// Err is nil until Done is closed. Then it is nil after Release, and otherwise
	// ErrLeaseLost, possibly wrapped.
	Err() error

	// Check confirms the lease and returns how long you can trust it from now on. If the last
	// confirmation by the lock service is older than a quarter of the time-out of the lease,
	// Check asks again and waits for the answer. The error wraps ErrLeaseLost if the lease is
	// over, and ErrUnavailable if that is unclear. Do not go on in either case.
	Check(ctx context.Context) (time.Duration, error)

	// Release gives the lock back and waits for the acknowledgement. After a failure it goes on
	// in the background, until the lock is free or the session of the lease is over. It never
	// removes the lock of a later owner, unless somebody has removed the lease's own lock by hand
	// and the Locker says that it may not notice. A second call does nothing.
	Release(ctx context.Context) error

	// ReleaseInBackground starts Release in the background and returns at once. The lock chooses the delay
	// and the retries.
	ReleaseInBackground()
}

// Acquire takes the lock. It waits for other holders until ctx ends. Waiters get the lock in no
// particular order.
func Acquire(ctx context.Context, l Locker, req LockRequest) (Lease, error) {
	for {
		lease, err := l.TryAcquire(ctx, req)
		if !errors.Is(err, ErrLocked) {
			return lease, err
		}
		if err := l.Wait(ctx, req.KeyID); err != nil {
			return nil, err
		}
	}
}

// HistoryLocker is a [Locker] whose service can come back with older data, as a ZooKeeper does
// that was restored from a backup. Its fences would start again below those in the records, in
// the same domain. The engine compares the fence of each lease with the highest one that is
// known, and tells the locker of a fence that is missing in the service.
type HistoryLocker interface {
	Locker

	// RenewDomain reports whether leases have another domain than seen.Domain from now on. A
	// lease had the fence seen before the call. If the service has a write of the locker from
	// during the call in front of that fence, it has lost its latest data, and RenewDomain gives
	// it another domain. All clients of the service learn it. Concurrent calls agree on one.
	// The error wraps ErrUnavailable, unless the locker may not change the domain.
	RenewDomain(ctx context.Context, seen Fence) (renewed bool, err error)
}
