package telemetry

import (
	"context"
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
	EventUnprotected                      // the handler ran without a key, because the route allows that
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

// Observer is called for each event, in the goroutine of the event. It must be safe for
// concurrent use and must not block. The engine drops its panics.
type Observer func(ctx context.Context, ev Event)
