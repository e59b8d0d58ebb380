package driver

import (
	"fmt"
	"slices"
	"time"
)

// State is the state of a key. The package comment draws how states follow each other.
type State uint8

// The states of a key.
const (
	StateNone      State = iota // the key was never used
	StateIssued                 // a token was issued and not used yet
	StatePending                // an attempt has begun and is not settled
	StateCompleted              // the outcome is stored; repeats get it
	StateReleased               // the last attempt had no effect, and the next one may run
	StateUnknown                // it is not known whether the last attempt took effect
	StateExpired                // completed, without the result now; the key is remembered
)

var stateNames = [...]string{"none", "issued", "pending", "completed", "released", "unknown", "expired"}

// String returns the name for answers and for the command line.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// ParseState reads the name from [State.String].
func ParseState(name string) (State, error) {
	for i, n := range stateNames {
		if n == name {
			return State(i), nil
		}
	}
	return StateNone, fmt.Errorf("idem: no state is called %q", name)
}

// Open reports whether a record in this state has an attempt to settle, by its holder, by a
// resolver or by an operator.
func (s State) Open() bool { return s == StatePending || s == StateUnknown }

// Attempt is one execution of an operation by one holder of its lock. Equal values are the same
// attempt.
type Attempt struct {
	Number uint32 // 1, 2, …; 0 before the first
	Fence  Fence  // of its lease
	Nonce  Nonce  // tells apart the attempts under one lease
}

// Record is the entry of a token store for one key ID. Times are those of the clock of the
// store. A zero time does not apply.
type Record struct {
	State       State
	Kind        KeyKind
	Route       string      // the name of the policy, to find its resolver
	Attempt     Attempt     // the last one
	Fingerprint Fingerprint // of the request that the key is bound to
	Response    *Response   // nil without a stored response, or if it cannot be read
	// ResponseErr says why the response cannot be read. It wraps ErrResponseDamaged or
	// ErrNewerRecord.
	ResponseErr error

	Created       time.Time // when the record was made
	Started       time.Time // when the last attempt began
	Settled       time.Time // when the last attempt was settled
	ResultExpires time.Time // end of the completed result
	KeyExpires    time.Time // end of the key
	TokenExpires  time.Time // end of an issued token

	// ResultTTL and KeyTTL are how long the route of an open attempt keeps a result and
	// remembers the key, from the settlement on. A settlement by any author keeps the key at
	// least for so long. They are zero in a record without an open attempt, and in one that a
	// version without these fields wrote.
	ResultTTL, KeyTTL time.Duration

	// Decision says who settled the attempt, unless its holder did.
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

// Decision says who settled an attempt in place of its holder, and why.
type Decision struct {
	By     string // "resolver", "engine", "marker", "sweeper", or the name of an operator; at most MaxAuthorBytes
	Reason string // free text; at most MaxReasonBytes
}

// Limits of a [Decision].
const (
	MaxAuthorBytes = 128
	MaxReasonBytes = 512
)

// machines are the authors that are parts of a service.
var machines = []string{"resolver", "engine", "marker", "sweeper"}

// ByPerson reports whether an operator decided, and no part of a service. Stores keep the
// decisions of persons.
func (d Decision) ByPerson() bool { return d.By != "" && !slices.Contains(machines, d.By) }
