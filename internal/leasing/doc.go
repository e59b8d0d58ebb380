// Package leasing is what lockers share whose locks have a time to live on a server: trust, heartbeat,
// waiting, and removal in the background. A [Service] sends the requests to the server.
//
// A request takes or renews a lock. The server lets the lock expire one time to live after it
// received the request, by its own clock. A lease is trusted for nine tenths of the time to
// live. The trust counts from before the request was sent. The lease clock measures it, and
// goes on while the machine is suspended.
//
//	sent ──── trusted: 9/10 ────▶ Done        ▼ another owner at the earliest
//	   └─ received ──── time to live: 10/10 ─┘
//
// Half of the tenth in between allows for clocks of different speeds. The other half allows
// for a late timer and for the holder's reaction.
package leasing

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// Lock names a lock and its owner.
type Lock struct {
	ID    driver.KeyID
	Owner driver.Nonce // of this lease and no other one
	Nonce driver.Nonce // of the attempt, for people who inspect the lock
}

// Service sends requests about locks to a server. It is safe for concurrent use. Every request may
// reach the server late or twice, and has to change nothing of another owner's lock then.
type Service interface {
	// Admit returns nil if the server may be asked about a lock now.
	Admit(ctx context.Context, id driver.KeyID) error
	// Acquire takes a lock. It returns false if another owner holds it. After an error the server may have
	// applied it, or may apply it yet.
	Acquire(ctx context.Context, lock Lock) (driver.Fence, bool, error)
	// Extend gives locks their full time to live again. The answers are in the order of the locks: nil
	// for a lock that was renewed, ErrGone for one that is another owner's or nobody's. After any other
	// error a lease keeps the trust that it had.
	Extend(ctx context.Context, locks []Lock) []error
	// Remove removes a lock, or returns ErrNoAnswer while the server is spared. It returns false if there was none of that owner.
	// Without sure the lock may never have been taken.
	Remove(ctx context.Context, lock Lock, sure bool) (found bool, err error)
	// Remaining is how long a lock exists unless it is renewed, or 0 if it is free.
	Remaining(ctx context.Context, id driver.KeyID) (time.Duration, error)
}

var (
	// ErrGone is an answer of Extend.
	ErrGone = errors.New("the lock is gone, or another owner's")
	// ErrClosed says that a locker was closed.
	ErrClosed = errors.New("locker is closed")
	// ErrNoAnswer says that the server is spared for a moment, see [Health].
	ErrNoAnswer = errors.New("no answer from the server a moment ago")
)

// TrustOf is how long a lease is trusted after its last renewal was sent.
func TrustOf(ttl time.Duration) time.Duration { return ttl - ttl/10 }

// HeartbeatOf is the age at which a lease is renewed. Two renewals may fail before the
// lease is lost.
func HeartbeatOf(ttl time.Duration) time.Duration { return ttl / 3 }

// TickOf is the pause between two looks for leases to renew.
func TickOf(ttl time.Duration) time.Duration { return ttl / 20 }

// PatienceOf bounds a request in the background, such as a renewal or a release.
func PatienceOf(ttl time.Duration) time.Duration { return min(ttl/5, 2*time.Second) }

// terms are the time to live of locks, and the lease clock.
type terms struct {
	ttl time.Duration
	now leaseclock.Source
}

// trustSince is how long a lease is still trusted. sent is when its last renewal was sent.
func (t *terms) trustSince(sent leaseclock.Instant) time.Duration {
	return sent.Add(TrustOf(t.ttl)).Sub(t.now())
}

// due reports whether a lease has the age of the heartbeat. left is how long it is still
// trusted.
func (t *terms) due(left time.Duration) bool { return left <= TrustOf(t.ttl)-HeartbeatOf(t.ttl) }
