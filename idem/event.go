package idem

import (
	"context"
	"errors"
	"time"
)

// EventType is what happened to a request.
type EventType uint8

// The events, in the order of the protocol.
const (
	EventRefused         EventType = iota // answered with a refusal (Code)
	EventReplayed                         // answered with the stored outcome
	EventJoined                           // waited for, or given the outcome of, a request running in this process
	EventWaited                           // waited for a request running elsewhere
	EventBegun                            // an attempt started (Attempt)
	EventBeginAborted                     // an unanswered Begin was undone
	EventInterrupted                      // an earlier holder's attempt was found open
	EventResolved                         // a resolver or policy decided an attempt (State)
	EventCompleted                        // outcome stored
	EventReleased                         // attempt had no effect; a repeat runs
	EventUnknown                          // outcome in doubt, recorded as unknown
	EventSuperseded                       // somebody else settled the attempt first
	EventOwnershipLost                    // the lease was lost while the handler ran
	EventSettleDelayed                    // the outcome could not be stored in time; the client was answered
	EventSettleAbandoned                  // saving the outcome, or undoing a Begin, was given up (Err)
	EventFailedOpen                       // the handler ran without protection
	EventReleaseFailed                    // the lock could not be given back at once
	EventMarked                           // a durable marker knew more than the store (State)
	EventLongRunning                      // a handler runs, and holds its key, for as long as Duration already
	EventUnprotected                      // the handler ran without a key, on a route that allows that
	EventRepaired                         // the store had lost the attempt, or fallen back to before it, and was told anew (State)
	EventUnstored                         // a success was answered and is not what the store has (State, Err)
	EventTooLate                          // CheckOwner or DownstreamKey refused: the handler had returned
	EventUnreadable                       // a record cannot be read, or where State is set its response (Err)
)

var eventNames = [...]string{"refused", "replayed", "joined", "waited", "begun", "begin-aborted", "interrupted",
	"resolved", "completed", "released", "unknown", "superseded", "ownership-lost", "settle-delayed",
	"settle-abandoned", "failed-open", "release-failed", "marked", "long-running", "unprotected", "repaired", "unstored", "too-late",
	"unreadable"}

// String returns the name used in logs and metrics.
func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return "event"
}

// Event tells an observer what happened. It holds neither keys nor bodies.
type Event struct {
	Type     EventType
	Route    string
	KeyID    KeyID // zero where the request had no valid key
	Attempt  Attempt
	State    State
	Code     Code          // of a refusal
	Duration time.Duration // of the handler, for events after it; so far, for EventLongRunning
	Err      error         // internal; for logs
}

// Observer is called for each event, in the goroutine where it happened: it
// must be safe for concurrent use and must not block. Its panics are dropped.
type Observer func(ctx context.Context, ev Event)

// observe reports an event of a request.
func (e *Engine) observe(ctx context.Context, r *request, ev Event) {
	ev.Route, ev.KeyID = r.Policy.Name, r.id
	e.report(ctx, ev)
}

// report calls the observer. It stops a panic of the observer, because the panic would leave
// a lock behind, or end the process.
func (e *Engine) report(ctx context.Context, ev Event) {
	if e.cfg.observer == nil {
		return
	}
	defer func() { _ = recover() }()
	e.cfg.observer(ctx, ev)
}

func (e *Engine) replayed(ctx context.Context, r *request) {
	e.observe(ctx, r, Event{Type: EventReplayed, Attempt: r.record.Attempt, State: r.record.State})
}

// refused reports a refusal. Other errors are those of the handler.
func (e *Engine) refused(ctx context.Context, p *Policy, id KeyID, err error) (Result, error) {
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		ev := Event{Type: EventRefused, KeyID: id, Code: refusal.Code, Err: refusal.Err}
		if p != nil {
			ev.Route = p.Name
		}
		e.report(ctx, ev)
	}
	return Result{}, err
}

// ReportRefused is for adapters. It reports a refusal from before Do, for example of a
// missing key or of a body over the limit.
func (e *Engine) ReportRefused(ctx context.Context, route string, r *Refusal) {
	e.report(ctx, Event{Type: EventRefused, Route: route, Code: r.Code, Err: r.Err})
}

// ReportUnprotected is for adapters. It reports a request without a key that goes to its
// handler, on a route with optional keys.
func (e *Engine) ReportUnprotected(ctx context.Context, route string) {
	e.report(ctx, Event{Type: EventUnprotected, Route: route})
}
