package memorylock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/uuid"
)

var (
	_ driver.Locker = (*Locker)(nil)
	_ driver.Lease  = (*lease)(nil)
)

// lastFence is the latest fencing token of the process. Lockers that share a domain
// never give out one token twice.
var lastFence = func() *atomic.Uint64 {
	var f atomic.Uint64
	f.Store(uint64(max(time.Now().UnixNano(), 1)))
	return &f
}()

// Locker is an in-process lock. It is safe for concurrent use and must not be
// copied. Make it with [New]. It needs no closing.
type Locker struct {
	domain string

	mu   sync.Mutex // guards held and the end of every lease
	held map[driver.KeyID]*lease
}

// Option changes how [New] makes a Locker. A nil option is ignored.
type Option func(*Locker)

// WithDomain sets the name of the lock domain. It is for a service of one process whose token store
// outlives it: the next process then knows that the attempts of this one are over, and no operator has
// to retire the domain. By default each Locker has a random UUID. Two Lockers may share a name only if one takes over from the other, or if
// their keys differ. The empty name leaves the default.
func WithDomain(name string) Option {
	return func(l *Locker) {
		if name != "" {
			l.domain = name
		}
	}
}

// New returns a Locker that holds nothing. Nil options are ignored.
func New(opts ...Option) *Locker {
	l := &Locker{domain: uuid.New(), held: make(map[driver.KeyID]*lease)}
	for _, opt := range opts {
		if opt != nil {
			opt(l)
		}
	}
	return l
}

// Domain returns the lock domain of all fences of this Locker.
func (l *Locker) Domain() string { return l.domain }

// Visibility returns [driver.VisibilityProcess].
func (*Locker) Visibility() driver.Visibility { return driver.VisibilityProcess }

// Ping returns ctx.Err().
func (*Locker) Ping(ctx context.Context) error { return ctx.Err() }

// TryAcquire implements [driver.Locker]. It never blocks. Its errors are
// [driver.ErrLocked], and ctx.Err() if ctx ended before the call. The lock is not
// reentrant, not even for the same nonce.
func (l *Locker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[req.KeyID] != nil {
		return nil, driver.ErrLocked
	}
	// The mutex puts the tokens of one key in the order of its leases.
	fence := driver.Fence{Domain: l.domain, Token: lastFence.Add(1)}
	le := &lease{locker: l, request: req, fence: fence, done: make(chan struct{})}
	l.held[req.KeyID] = le
	return le, nil
}

// Wait implements [driver.Locker]. It returns nil when the lock is free, or as soon as
// the current lease has ended.
func (l *Locker) Wait(ctx context.Context, id driver.KeyID) error {
	l.mu.Lock()
	holder := l.held[id]
	l.mu.Unlock()
	if holder == nil {
		return nil
	}
	select {
	case <-holder.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Holder returns the nonce of the attempt that holds the lock. It returns false if
// the lock is free.
func (l *Locker) Holder(id driver.KeyID) (driver.Nonce, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if le := l.held[id]; le != nil {
		return le.request.Nonce, true
	}
	return driver.Nonce{}, false
}

// Revoke takes the lock away from its holder, as an expired session does on a lock
// server. The lease's Done closes with [driver.ErrLeaseLost] and the lock is free.
// Revoke reports whether the lock was held. It is for tests of a handler's reaction.
func (l *Locker) Revoke(id driver.KeyID) bool {
	l.mu.Lock()
	le := l.held[id]
	l.mu.Unlock()
	return le != nil && le.end(errRevoked)
}

// trusted is the answer of Check: a lease in memory has no time-out.
const trusted = 365 * 24 * time.Hour

var (
	errRevoked  = fmt.Errorf("lock/memory: lock was revoked: %w", driver.ErrLeaseLost)
	errReleased = fmt.Errorf("lock/memory: lease was released before: %w", driver.ErrLeaseLost)
)

// lease is a lock held in one Locker.
type lease struct {
	locker  *Locker
	request driver.LockRequest
	fence   driver.Fence
	done    chan struct{} // closed when the lease ends
	ended   error         // errRevoked or errReleased; guarded by locker.mu
}

// end frees the lock, unless the lease has ended before.
func (le *lease) end(why error) bool {
	le.locker.mu.Lock()
	defer le.locker.mu.Unlock()
	if le.ended != nil {
		return false
	}
	le.ended = why
	delete(le.locker.held, le.request.KeyID)
	close(le.done)
	return true
}

// why returns the reason of the lease's end, and nil before it.
func (le *lease) why() error {
	le.locker.mu.Lock()
	defer le.locker.mu.Unlock()
	return le.ended
}

// Fence implements [driver.Lease].
func (le *lease) Fence() driver.Fence { return le.fence }

// Done implements [driver.Lease].
func (le *lease) Done() <-chan struct{} { return le.done }

// Err implements [driver.Lease].
func (le *lease) Err() error {
	if why := le.why(); why != errReleased { //nolint:errorlint // one of two variables
		return why
	}
	return nil
}

// Check implements [driver.Lease]. It asks no server and never waits. A lease that is
// held can be trusted for a year. If ctx has ended, Check returns ctx.Err().
func (le *lease) Check(ctx context.Context) (time.Duration, error) {
	if why := le.why(); why != nil {
		return 0, why
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return trusted, nil
}

// Release implements [driver.Lease]. It always succeeds, even if ctx has ended.
func (le *lease) Release(context.Context) error {
	le.end(errReleased)
	return nil
}

// ReleaseInBackground implements [driver.Lease].
func (le *lease) ReleaseInBackground() { le.end(errReleased) }
