package idem

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Operation is one request for an execution. It comes from a queue, a job or an adapter.
type Operation struct {
	// Transport is for adapters. The zero value, TransportDirect, is a call by the application
	// itself.
	Transport Transport
	// Scope is the owner of the key, a tenant or principal. If it is "", the engine asks
	// Policy.Scope with the context of the call. "" remains only if the policy allows global
	// keys.
	Scope string
	// Key is the same for every repeat. It has 1 to MaxKeyBytes bytes.
	Key Key
	// Policy is the policy of the route. Do not change it during the call.
	Policy *Policy
	// Fingerprint tells this request from others with the same key; see
	// [FingerprintOf].
	Fingerprint Fingerprinter
	// RunOnce says that the handler cannot be called a second time for this request, as in a
	// chain of handlers that has no way back. [WithConflictRetries] does not apply then.
	RunOnce bool
}

// Handler executes an operation. Its context carries the [Execution] and does not end with the
// context of the caller. It ends at the deadline of the policy. It is cancelled with cause
// ErrLeaseLost when the lease can no longer be trusted. The handler runs in the goroutine of
// the call to [Engine.Do].
//
// An error means that the outcome is in doubt, with any response.
type Handler func(ctx context.Context) (Response, error)

// Result is the answer of [Engine.Do].
type Result struct {
	Response Response
	Replayed bool // the stored outcome of an earlier execution
	KeyID    driver.KeyID
	Attempt  uint32 // of the response; 0 if the route failed open
}

// Token is a one-time token from [Engine.IssueToken].
type Token struct {
	Value     Key       // for the client; kept only there
	ExpiresAt time.Time // by the store's clock
}

// Status describes a key to its owner.
type Status struct {
	State       driver.State
	Kind        driver.KeyKind
	OperationID string
	Attempt     uint32
	Since       time.Time // zero for an unused key
	// ExpiresAt is the end of the result, of the token, or of a key without a result. It is
	// zero while the attempt is open.
	ExpiresAt time.Time
	// ResolvesItself says that an open attempt needs no person if it was interrupted. The
	// policy asks a resolver or runs again, at the latest when the client sends the request
	// again. A resolver may still not know the outcome.
	ResolvesItself bool
}
