package idem

import (
	"context"
	"time"
)

// Operation is one request for an execution: a message of a queue, a run of a
// job, or what an adapter made of a request.
type Operation struct {
	// Transport is for adapters. The zero value, TransportDirect, is a call by
	// the application itself.
	Transport Transport
	// Scope is whose key it is: the tenant or principal. Where it is "",
	// Policy.Scope is asked with the context of the call. "" is accepted only
	// where the policy allows global keys.
	Scope string
	// Key is the same for every repeat: 1 to MaxKeyBytes bytes.
	Key Key
	// Policy is the route's. It is not changed, and must not be during the call.
	Policy *Policy
	// Fingerprint tells this request from others with the same key; see
	// [FingerprintOf].
	Fingerprint Fingerprinter
}

// Handler executes an operation. Its context is detached from the caller's
// cancellation, carries the [Execution], ends at the policy's deadline, and is
// cancelled with cause ErrLeaseLost when the lease can no longer be trusted.
// It runs in the goroutine that called [Engine.Do].
//
// An error means that the outcome is in doubt, whatever the response.
type Handler func(ctx context.Context) (Response, error)

// Result is what [Engine.Do] answers a request with.
type Result struct {
	Response Response
	Replayed bool // the stored outcome of an earlier execution
	KeyID    KeyID
	Attempt  uint32 // that the response is of; 0 where a route failed open
}

// Token is a one-time token as [Engine.IssueToken] made it.
type Token struct {
	Value     Key       // for the client; kept nowhere else
	ExpiresAt time.Time // by the store's clock
}

// Status is what a key's owner may know of it.
type Status struct {
	State       State
	Kind        KeyKind
	OperationID string
	Attempt     uint32
	Since       time.Time // zero where nothing is known of the key
	// ExpiresAt is until when the result is kept, a token can be used, or a key
	// without a result is remembered; zero while the attempt is open.
	ExpiresAt time.Time
	// ResolvesItself says of an open attempt that no person has to settle it where it
	// was interrupted: the policy asks a resolver or runs again, when the request is
	// sent again, if not earlier. A resolver may still not know.
	ResolvesItself bool
}
