package idem

import (
	"context"
	"errors"
	"time"
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
	KeyID    KeyID // zero without a valid key
	Attempt  Attempt
	State    State
	Code     Code          // of a refusal
	Duration time.Duration // of the handler, so far or as a whole
	Err      error         // internal; for logs
	By       string        // of EventResolved: the author of the decision, as in Decision.By
}

// Observer is called for each event, in the goroutine of the event. It must be safe for
// concurrent use and must not block. The engine drops its panics.
type Observer func(ctx context.Context, ev Event)

// observe reports an event of a request.
func (e *Engine) observe(ctx context.Context, r *request, ev Event) {
	ev.Route, ev.KeyID = r.Policy.Name, r.id
	e.report(ctx, ev)
}

// report tells the telemetry and the observers of an event.
func (e *Engine) report(ctx context.Context, ev Event) {
	if e.cfg.telemetry != nil {
		tell(ctx, e.cfg.telemetry.Event, ev)
	}
	for _, fn := range e.cfg.observers {
		tell(ctx, fn, ev)
	}
}

// tell calls an observer. It stops a panic of the observer, because the panic would leave a
// lock behind, or end the process.
func tell(ctx context.Context, fn Observer, ev Event) {
	defer func() { _ = recover() }()
	fn(ctx, ev)
}

func (e *Engine) replayed(ctx context.Context, r *request) {
	e.observe(ctx, r, Event{Type: EventReplayed, Attempt: r.record.Attempt, State: r.record.State})
}

// refused reports a refusal. If the outcome is in doubt, the client gets the ID of the operation.
func (e *Engine) refused(ctx context.Context, p *Policy, id KeyID, err error) (Result, error) {
	if refusal, ok := asRefused(err); ok {
		ev := Event{Type: EventRefused, KeyID: id, Code: refusal.Code, Err: refusal.Err}
		if p != nil {
			ev.Route = p.Name
		}
		e.report(ctx, ev)
	}
	if refusal, ok := err.(*Refusal); ok && refusal.Code == CodeOutcomeUnknown && refusal.OperationID == "" { //nolint:errorlint // a handler's error may wrap another one
		told := *refusal
		told.OperationID, told.MayHaveHappened = id.OperationID(), true
		err = &told
	}
	return Result{}, err
}

// asRefused returns the refusal in an error. Other errors are those of the handler.
func asRefused(err error) (*Refusal, bool) { return errors.AsType[*Refusal](err) }

// ReportRefused is for adapters. It reports a refusal from before Do, for example of a
// missing key or of a body over the limit.
func (e *Engine) ReportRefused(ctx context.Context, route string, r *Refusal) {
	ctx, step := e.startRequest(ctx, route)
	defer step.report(StepEnd{Route: route, Outcome: OutcomeRefused, Code: r.Code, Err: r.Err})
	e.report(ctx, Event{Type: EventRefused, Route: route, Code: r.Code, Err: r.Err})
}

// ReportMisused is for adapters. It reports middleware or a handler that keeps the adapter from
// knowing the answer of the execution of ctx. Its outcome is in doubt, whatever the handler has
// declared. Outside of an execution it does nothing.
func (e *Engine) ReportMisused(ctx context.Context, err error) {
	if x := executionOf(ctx); x != nil {
		x.misused.Store(true)
		e.observe(ctx, x.of, Event{Type: EventMisused, Attempt: x.attempt, Err: err})
	}
}

// ReportUnprotected is for adapters. It reports a request without a key that goes to its
// handler, on a route with optional keys.
func (e *Engine) ReportUnprotected(ctx context.Context, route string) {
	ctx, step := e.startRequest(ctx, route)
	defer step.report(StepEnd{Route: route, Outcome: OutcomeUnprotected})
	e.report(ctx, Event{Type: EventUnprotected, Route: route})
}
