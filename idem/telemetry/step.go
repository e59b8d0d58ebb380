package telemetry

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Step is a part of a request that takes time.
type Step uint8

// The steps of a request. All others are within StepRequest, and StepResolve may be within
// StepBegin. Where one call asks for record, lock and attempt ([driver.LockingStore]), it is a StepBegin, also
// for a replay.
const (
	StepRequest Step = iota // the whole of Engine.Do
	StepRead                // the store is asked for the record
	StepWait                // a duplicate waits for the request that runs, in this process or elsewhere
	StepLock                // the lock is asked for; the error is ErrLocked if another owner has it
	StepBegin               // the attempt is begun, or the outcome of an earlier one is found
	StepHandler             // the handler runs
	StepSettle              // the outcome is stored, or the joined transaction ends
	StepResolve             // the resolver is asked about an outcome in doubt
)

var stepNames = [...]string{"request", "read", "wait", "lock", "begin", "handler", "settle", "resolve"}

// String returns the name for spans and metrics.
func (s Step) String() string {
	if int(s) < len(stepNames) {
		return stepNames[s]
	}
	return "step"
}

// Recorder measures an engine. Package observe has one for OpenTelemetry. Like an [Observer]
// it must be safe for concurrent use and must not block, and the engine drops its panics.
type Recorder interface {
	// Watch is called once, when the engine is made. Its arguments are for gauges that are read
	// now and then.
	Watch(engine Engine, store driver.Store)
	// StartStep is called at the start of each step, in the goroutine of the request. It
	// returns the context in which the step runs, which has to come from ctx, and the trace of
	// the step. The engine hands the trace on and does not look at it. nil is none. A nil
	// context leaves the step out, and EndStep is not called.
	StartStep(ctx context.Context, start StepStart) (inner context.Context, trace any)
	// EndStep is called at the end of the step, also after a panic of the handler, with both
	// results of StartStep.
	EndStep(ctx context.Context, trace any, end StepEnd)
	// Span names a trace from StartStep, to be kept with the response. The zero Span is none.
	Span(trace any) driver.Span
	// Event is called for every event, like an [Observer].
	Event(ctx context.Context, ev Event)
}

// Logger is a [Recorder] that may log the events itself. If it does, an engine without a logger of its own logs none of them.
type Logger interface {
	Recorder
	Logs() bool
}

// StepStart describes a step that begins.
type StepStart struct {
	Step  Step
	Route string
	// Request is the trace of the request that the step belongs to, or nil. The sweeper, for
	// example, asks for locks without a request.
	Request any
}

// StepEnd describes a step that is over. It holds neither keys nor bodies.
type StepEnd struct {
	Step     Step
	Route    string
	KeyID    driver.KeyID  // zero without a valid key
	Attempt  uint32        // the number of the attempt, or 0
	Duration time.Duration // of the step
	Err      error         // of the step: internal, for logs and traces

	// Of StepRequest only:
	Outcome Outcome
	Code    string      // of a refusal
	Origin  driver.Span // of the execution whose outcome is replayed, if that was recorded
}

// Outcome says how a request was answered.
type Outcome uint8

// The outcomes of requests.
const (
	OutcomeRefused     Outcome = iota // with a refusal
	OutcomeReplayed                   // with the outcome of an earlier execution, or of one in progress
	OutcomeCompleted                  // the handler ran, and its outcome is stored
	OutcomeReleased                   // the handler ran without effect
	OutcomeUnknown                    // the handler ran, and its outcome is in doubt
	OutcomeUnsettled                  // the handler ran, and its outcome could not be stored before the answer
	OutcomeFailedOpen                 // the handler ran without protection, because lock or store was away
	OutcomeUnprotected                // the handler ran without a key
)

var outcomeNames = [...]string{"refused", "replayed", "completed", "released", "unknown", "unsettled", "failed-open", "unprotected"}

// String returns the name for spans and metrics.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "outcome"
}
