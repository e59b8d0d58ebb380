package driver

import (
	"context"
	"strconv"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/internal/digest"
)

// Holder is the owner of a lock, as the lock service knows it. The zero value is an owner
// without a name, such as a joined transaction.
type Holder struct {
	Host  string // of the process; "" if it is not known
	PID   int    // process ID on Host; 0 if it is not known
	Nonce Nonce  // of the [LockRequest]; zero if it is not known
}

// String names the process, for operators. It is "" for an owner without a name.
func (h Holder) String() string {
	if h.Host == "" {
		return ""
	}
	return h.Host + " (process " + strconv.Itoa(h.PID) + ")"
}

// LockInspector is a [Locker] that tells operators about its locks. It is safe for concurrent
// use. The answers are hints.
type LockInspector interface {
	// HeldBy returns the owner of a lock, and false if the lock is free. The lock of a dead
	// process counts as held until the lock service frees it. The error wraps ErrUnavailable.
	HeldBy(ctx context.Context, id KeyID) (Holder, bool, error)

	// DomainOf returns the lock domain that a lease of the key would have now. It is "" if no
	// lock has given that domain a name yet. The error wraps ErrUnavailable.
	DomainOf(ctx context.Context, id KeyID) (string, error)
}

// Decided is a decision of a person about an attempt.
type Decided struct {
	At      time.Time // by the clock of the store
	Attempt uint32    // its number
	State   State     // what the attempt became
	ID      Nonce     // of its settlement
	Decision
}

// DecisionID names a settlement by a person after what it says. Two settlements of an attempt have
// the same ID if they have the same state and response. So a program that has died can find out
// whether a decision of its own took effect, even if the key has run again since.
func DecisionID(id KeyID, s *Settlement) (n Nonce, err error) {
	var response []byte
	if s.Response != nil && s.State != StateReleased {
		if response, err = s.Response.AppendBinary(nil); err != nil {
			return n, err
		}
	}
	a := &s.Attempt
	sum := digest.Of("idemkeeper decision 1", string(id[:]), a.Fence.Domain, strconv.FormatUint(a.Fence.Token, 10),
		strconv.FormatUint(uint64(a.Number), 10), string(a.Nonce[:]), s.State.String(), string(response))
	copy(n[:], sum[:])
	return n, nil
}

// Forgetter is a [Store] that can remove a stored response before its time, for data that must go.
type Forgetter interface {
	// Forget removes the response of a completed or unknown record, and leaves the record in its
	// state. In the place of the response is one with its status alone, which is Omitted. So repeats of a completed
	// request are refused. Any other record stays as it is. The result is the record after the
	// call. The decision is kept as that of a settlement, with StateExpired. A second call does
	// nothing.
	//
	// The errors are those of Settle.
	Forget(ctx context.Context, id KeyID, d Decision) (Record, error)
}

// StoreInspector is a [Store] that tells operators more than the protocol needs. It is safe for
// concurrent use.
type StoreInspector interface {
	// Clock returns the time of the store, which is that of its records. The error wraps
	// ErrUnavailable.
	Clock(ctx context.Context) (time.Time, error)

	// Decisions lists the decisions of people about a key, newest first. They outlive the
	// record. Decisions of the resolver, the engine, a marker and the sweeper are not kept. The
	// error wraps ErrUnavailable.
	Decisions(ctx context.Context, id KeyID) ([]Decided, error)

	// EachKey calls f with the ID of every record, in no particular order, until f returns
	// false. It reads the whole store in small steps, and may take minutes. It may miss a
	// record that begins meanwhile, and may name one twice. The error wraps ErrUnavailable, or
	// is that of ctx.
	EachKey(ctx context.Context, f func(KeyID) bool) error
}
