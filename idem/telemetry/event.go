package telemetry

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// EventType is the kind of an event.
type EventType uint8

// The events, in the order of the protocol.
const (
	EventRefused         EventType = iota // answered with a refusal (Code)
	EventReplayed                         // answered with the stored outcome
	EventJoined                           // waited for a request that runs in this process
	EventWaited                           // waited for a request running elsewhere
	EventBegun                            // an attempt started (Attempt)
	EventBeginAborted                     // an unanswered Begin was undone
	EventInterrupted                      // the attempt of an earlier holder was found open
	EventResolved                         // a resolver, a policy or an operator decided that an attempt took effect or did not (State, By)
	EventCompleted                        // outcome stored (Err: without its response)
	EventReleased                         // attempt had no effect; a repeat runs
	EventUnknown                          // outcome in doubt, recorded as unknown, by its holder or after it was interrupted (Err)
	EventSuperseded                       // another owner or an operator settled the attempt first
	EventOwnershipLost                    // the lease was lost while the handler ran
	EventSettleDelayed                    // the outcome could not be stored in time; the client was answered
	EventSettleAbandoned                  // the engine gave up saving the outcome or undoing a Begin (Err)
	EventFailedOpen                       // the handler ran without protection
	EventReleaseFailed                    // the lock could not be given back at once
	EventMarked                           // a durable marker knew more than the store (State)
	EventLongRunning                      // a handler has held its key for Duration so far
	EventUnprotected                      // a request came without a key, to a route where that is optional
	EventRepaired                         // the store had lost the attempt, or fallen back to before it, and has it again (State)
	EventUnstored                         // a success was answered, and the store has something else (State, Err)
	EventTooLate                          // CheckOwner or DownstreamKey refused: the handler had returned
	EventUnreadable                       // a record cannot be read, or its response if State is set (Err)
	EventConflict                         // a joined transaction met a conflict, and the handler runs again (Err)
	EventMisused                          // a handler used its joined transaction in a wrong way, or middleware answered for a handler that may still run (Err)
	EventUnresolved                       // a resolver was asked about an unknown outcome, and it could not tell (Err)
	EventDomainRenewed                    // the lock service came back with older data, and its leases have another domain from now on (Err)
)

var eventNames = [...]string{"refused", "replayed", "joined", "waited", "begun", "begin-aborted", "interrupted",
	"resolved", "completed", "released", "unknown", "superseded", "ownership-lost", "settle-delayed",
	"settle-abandoned", "failed-open", "release-failed", "marked", "long-running", "unprotected", "repaired", "unstored", "too-late",
	"unreadable", "conflict", "misused", "unresolved", "domain-renewed"}

// String returns the name used in logs and metrics.
func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return "event"
}

// Event is a report to an observer. It holds neither keys nor bodies.
type Event struct {
	Type     EventType
	Route    string
	KeyID    driver.KeyID // zero without a valid key
	Attempt  driver.Attempt
	State    driver.State
	Code     string        // of a refusal, one of the codes in package idem
	Duration time.Duration // of the handler, so far or as a whole
	Err      error         // internal; for logs
	By       string        // of EventResolved: the author of the decision, as in Decision.By
}

// Hint is the next step after an event that tells of a fault of the server, for its developer or operator. It is "" if Err says that
// itself.
func (ev *Event) Hint() string {
	switch {
	case errors.Is(ev.Err, driver.ErrSwallowed), errors.Is(ev.Err, driver.ErrEscaped):
		return "leave COMMIT and ROLLBACK to the middleware, and answer with an error if a statement has failed"
	case ev.Code == "outcome-unknown" && (errors.Is(ev.Err, driver.ErrConflict) || errors.Is(ev.Err, driver.ErrRolledBack)):
		return "the request had no key, and its handler calls other systems, so nobody runs it again: look what they have"
	case errors.Is(ev.Err, driver.ErrConflict):
		return "idem.WithConflictRetries lets the engine run the handler again after a conflict"
	case ev.Type == EventSettleAbandoned && ev.KeyID == (driver.KeyID{}):
		return "COMMIT of a request without a key was not answered, and nothing can tell later whether it was executed"
	}
	switch ev.Type {
	case EventUnreadable:
		return "idemctl record show prints what can be read of it; a build cannot read what a later build has written"
	case EventUnstored, EventSettleAbandoned:
		return "idemctl record show prints what the store has of this operation"
	case EventUnknown:
		return "a resolver settles it, or a person with idemctl record resolve or in the console; until then the client gets outcome-unknown"
	case EventFailedOpen:
		return "the handler ran without protection, because FailOpen of its policy allows that: make lock and store available again"
	}
	switch ev.Code {
	case "store-lost":
		return "look whether this is the right server, and why it lost its records; then idemctl store accept lets new keys run (docs/operations.md)"
	case "ownership-lost":
		return "look whether the process was paused, or the lock service away, for longer than a lease lasts"
	case "unavailable":
		return "idemctl doctor, with the URLs of this service, says which server does not answer, or which setting or right it lacks"
	}
	return ""
}

// Observer is called for each event, in the goroutine of the event. It must be safe for
// concurrent use and must not block. The engine drops its panics.
type Observer func(ctx context.Context, ev Event)
