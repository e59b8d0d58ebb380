package idem

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strconv"
	"time"
)

// Facts a [Locker] reports. Implementations wrap them with what happened.
var (
	// ErrLocked says that somebody else holds the lock.
	ErrLocked = errors.New("idem: lock is held by another owner")
	// ErrLeaseLost says that a lease can no longer be trusted. It is also the
	// cause with which the context of a running handler is cancelled then.
	ErrLeaseLost = errors.New("idem: lease lost")
	// ErrUnavailable says that the lock service or the token store could not
	// be reached, or did not answer in time.
	ErrUnavailable = errors.New("idem: lock or store unavailable")
)

// Fence is a fencing token: a number that only grows from one holder of a lock
// to the next. A resource that remembers the highest fence it has seen can
// refuse a holder that was paused past its lease (M. Kleppmann, "How to do
// distributed locking", 2016).
//
// Fences of different domains cannot be compared.
type Fence struct {
	Domain string // lock domain: an ensemble, a Redis, one process; never empty
	Token  uint64 // grows within Domain; never 0
}

// Before reports whether f was handed out earlier than g in the same domain.
// It is false for different domains.
func (f Fence) Before(g Fence) bool { return f.Domain == g.Domain && f.Token < g.Token }

// String returns "domain/token", for logs.
func (f Fence) String() string { return f.Domain + "/" + strconv.FormatUint(f.Token, 10) }

// Nonce names one attempt, so that a message that is sent twice can be
// recognised. It is random and never reused.
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
	// VisibilityShared is what other processes can see: a server.
	VisibilityShared Visibility = iota
	// VisibilityProcess is what only this process can see, or what it has claimed
	// so that no other can use it.
	VisibilityProcess
)

// LockRequest names the lock to take and the attempt that takes it.
type LockRequest struct {
	KeyID KeyID // what is locked
	Nonce Nonce // the attempt; kept with the lock, so that its holder can be told
}

// Locker hands out exclusive leases, one per key ID. It is safe for concurrent
// use. Package idemtest has the suite that every Locker has to pass.
type Locker interface {
	// TryAcquire takes the lock, or returns ErrLocked at once where somebody
	// holds it. Any other error says that no lease was taken: what may have
	// been applied on the server is undone in the background. While the lock
	// service is known to be unreachable it fails at once with ErrUnavailable.
	//
	// ctx bounds the call only, and is not to be used after it: a lease that was
	// granted outlives it.
	TryAcquire(ctx context.Context, req LockRequest) (Lease, error)

	// Wait returns nil once the lock looked free, which proves nothing: the
	// caller looks again. It returns ctx.Err() when ctx ends first, and
	// ErrUnavailable when the service cannot be asked.
	Wait(ctx context.Context, id KeyID) error

	// Ping returns nil when the lock service can be reached right now.
	Ping(ctx context.Context) error

	// Visibility says who can see the locks.
	Visibility() Visibility
}

// Lease is a held lock. It is safe for concurrent use.
type Lease interface {
	// Fence is the fencing token of this lease: greater than that of every
	// earlier lease of the same key in the same domain.
	Fence() Fence

	// Done is closed when the lease ended: released, lost, or no longer to be
	// trusted. It is closed before another owner can hold the lock, as far as
	// a running process can tell; a paused one cannot.
	Done() <-chan struct{}

	// Err is nil until Done is closed; then ErrLeaseLost (possibly wrapped), or
	// nil after Release.
	Err() error

	// Check confirms that the lease is still held and returns how long it can
	// be trusted from now on. When the last confirmation by the lock service
	// is older than a quarter of the lease's time-out, it asks again and waits
	// for the answer. The error wraps ErrLeaseLost when the lease is over and
	// ErrUnavailable when that cannot be told; in both cases do not go on.
	Check(ctx context.Context) (time.Duration, error)

	// Release gives the lock back and waits until that is acknowledged. A
	// failure leaves the release to the background, where it is repeated until
	// it is known to be done or the session behind the lease is over. It
	// never removes a later owner's lock. Releasing twice does nothing.
	Release(ctx context.Context) error

	// ReleaseInBackground starts Release in the background and returns at once.
	ReleaseInBackground()
}

// Acquire takes the lock, waiting while others hold it, until ctx ends.
// Waiters are not served in order.
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
