package idem

import (
	"fmt"
	"time"
)

// State is where a key stands. The package comment draws how states follow
// each other.
type State uint8

// The states of a key.
const (
	StateNone      State = iota // nothing is known of the key
	StateIssued                 // a token was issued and not used yet
	StatePending                // an attempt has begun and is not settled
	StateCompleted              // the outcome is stored; repeats get it
	StateReleased               // the last attempt had no effect; the next one may run
	StateUnknown                // nobody knows whether the last attempt took effect
	StateExpired                // completed, and the result is gone; the key is remembered
)

var stateNames = [...]string{"none", "issued", "pending", "completed", "released", "unknown", "expired"}

// String returns the name used in answers and by the command line.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// ParseState reads what [State.String] wrote.
func ParseState(name string) (State, error) {
	for i, n := range stateNames {
		if n == name {
			return State(i), nil
		}
	}
	return StateNone, fmt.Errorf("idem: no state is called %q", name)
}

// Open reports whether the attempt of a record in this state can still be
// settled: by its holder, by a resolver or by an operator.
func (s State) Open() bool { return s == StatePending || s == StateUnknown }

// Attempt is one execution of an operation, by one holder of its lock. Two
// attempts are the same when they are equal.
type Attempt struct {
	Number uint32 // 1, 2, …; 0 where none has begun
	Fence  Fence  // of the lease under which it ran
	Nonce  Nonce  // tells attempts under one lease apart
}

// Record is what a token store keeps for one key ID. Times are those of the
// store's clock; a zero time means that it does not apply.
type Record struct {
	State       State
	Kind        KeyKind
	Route       string      // the policy's name, so that a resolver can be found
	Attempt     Attempt     // the last one
	Fingerprint Fingerprint // of the request that the key is bound to
	Response    *Response   // nil where none was stored, or where it cannot be read
	// ResponseErr says why the response cannot be read. It wraps
	// ErrResponseDamaged or ErrNewerRecord.
	ResponseErr error

	Created       time.Time // when the record came to be
	Started       time.Time // when the last attempt began
	Settled       time.Time // when the last attempt was settled
	ResultExpires time.Time // until when a completed result is kept
	KeyExpires    time.Time // until when the key is remembered
	TokenExpires  time.Time // until when an issued token can be used

	// Decision says who settled the attempt where that was not its holder.
	Decision Decision
}

// Since is when the record entered its state.
func (r *Record) Since() time.Time {
	switch r.State {
	case StatePending:
		return r.Started
	case StateCompleted, StateReleased, StateUnknown:
		return r.Settled
	case StateExpired:
		return r.ResultExpires
	default:
		return r.Created
	}
}

// Decision says who settled an attempt that its holder did not settle.
type Decision struct {
	By     string // "resolver", "engine", "marker", "sweeper", or an operator's name; at most 128 bytes
	Reason string // free text; at most 512 bytes
}
