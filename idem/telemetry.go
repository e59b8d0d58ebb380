package idem

import (
	"context"
	"sync/atomic"
	"time"
)

// Step is a part of a request that takes time.
type Step uint8

// The steps of a request. All others are within StepRequest, and StepResolve may be within
// StepBegin.
const (
	StepRequest Step = iota // the whole of [Engine.Do]
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

// Telemetry measures an engine. Package observe has one for OpenTelemetry. Like an [Observer]
// it must be safe for concurrent use and must not block, and the engine drops its panics.
type Telemetry interface {
	// Watch is called once, when the engine is made. Its arguments are for gauges that are read
	// now and then.
	Watch(engine *Engine, store Store)
	// StartStep is called at the start of each step, in the goroutine of the request. It
	// returns the context in which the step runs, which has to come from ctx, and the trace of
	// the step. The engine hands the trace on and does not look at it. nil is none. A nil
	// context leaves the step out, and EndStep is not called.
	StartStep(ctx context.Context, start StepStart) (inner context.Context, trace any)
	// EndStep is called at the end of the step, also after a panic of the handler, with both
	// results of StartStep.
	EndStep(ctx context.Context, trace any, end StepEnd)
	// Span names a trace from StartStep, to be kept with the response. The zero Span is none.
	Span(trace any) Span
	// Event is called for every event, like an [Observer].
	Event(ctx context.Context, ev Event)
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
	KeyID    KeyID         // zero without a valid key
	Attempt  uint32        // the number of the attempt, or 0
	Duration time.Duration // of the step
	Err      error         // of the step: internal, for logs and traces

	// Of StepRequest only:
	Outcome Outcome
	Code    Code // of a refusal
	Origin  Span // of the execution whose outcome is replayed, if that was recorded
}

// Span names a span, as W3C Trace Context does. The zero Span is none.
type Span struct {
	TraceID [16]byte
	SpanID  [8]byte
}

// IsZero reports whether s names no span.
func (s Span) IsZero() bool { return s == Span{} }

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

// requestTelemetry is what the telemetry needs to know of a request.
type requestTelemetry struct {
	trace      any           // of the whole request
	attempt    uint32        // the number of the attempt whose handler ran, or 0
	failedOpen bool          // the handler ran without protection
	settled    atomic.Uint32 // the State of the record after the attempt, StateNone until it is known
}

// step is a step that runs. It does nothing without telemetry.
type step struct {
	engine  *Engine
	ctx     context.Context
	trace   any
	kind    Step
	started time.Time
}

// startStep starts a step of a request and returns the context for it.
func (e *Engine) startStep(ctx context.Context, kind Step, r *request) (inner context.Context, s step) {
	if e.cfg.telemetry == nil {
		return ctx, step{}
	}
	return e.start(ctx, StepStart{Step: kind, Route: r.Policy.Name, Request: r.telemetry.trace})
}

// inStep runs fn as a step of a request. The context of fn has this time-out; 0 is none.
func (e *Engine) inStep(ctx context.Context, kind Step, r *request, timeout time.Duration, fn func(ctx context.Context) error) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	ctx, step := e.startStep(ctx, kind, r)
	err := fn(ctx)
	step.end(r, err)
	return err
}

// startRequest starts the step of a whole request.
func (e *Engine) startRequest(ctx context.Context, route string) (inner context.Context, s step) {
	if e.cfg.telemetry == nil {
		return ctx, step{}
	}
	return e.start(ctx, StepStart{Step: StepRequest, Route: route})
}

// start starts a step. It stops a panic of the telemetry, as tell does.
func (e *Engine) start(ctx context.Context, start StepStart) (inner context.Context, s step) {
	defer func() {
		if recover() != nil {
			inner, s = ctx, step{}
		}
	}()
	inner, trace := e.cfg.telemetry.StartStep(ctx, start)
	if inner == nil {
		return ctx, step{}
	}
	return inner, step{engine: e, ctx: inner, trace: trace, kind: start.Step, started: time.Now()}
}

// end ends a step of a request.
func (s *step) end(r *request, err error) {
	if s.engine != nil {
		s.report(StepEnd{Route: r.Policy.Name, KeyID: r.id, Attempt: r.telemetry.attempt, Err: err})
	}
}

// report ends a step. It stops a panic of the telemetry, as tell does.
func (s *step) report(end StepEnd) {
	if s.engine == nil {
		return
	}
	defer func() { _ = recover() }()
	end.Step, end.Duration = s.kind, time.Since(s.started)
	s.engine.cfg.telemetry.EndStep(s.ctx, s.trace, end)
}

// endRequest ends the step of the whole request. r is nil if the request was not admitted.
func (s *step) endRequest(route string, r *request, res *Result, err error) {
	if s.engine == nil {
		return
	}
	end := StepEnd{Route: route, Err: err}
	if r != nil {
		end.Route, end.KeyID, end.Attempt = r.Policy.Name, r.id, r.telemetry.attempt
	}
	refusal, refused := asRefused(err)
	switch {
	case refused && r != nil && r.telemetry.attempt > 0 && refusal.Code == CodeOutcomeUnknown:
		end.Outcome, end.Code, end.Err = OutcomeUnknown, refusal.Code, refusal.Err
	case refused:
		end.Outcome, end.Code, end.Err = OutcomeRefused, refusal.Code, refusal.Err
	case r == nil:
	case res != nil && res.Replayed:
		end.Outcome, end.Attempt, end.Origin = OutcomeReplayed, res.Attempt, res.Response.Span
	case r.telemetry.failedOpen:
		end.Outcome = OutcomeFailedOpen
	default:
		end.Outcome = outcomeOf(State(r.telemetry.settled.Load()))
	}
	s.report(end)
}

// outcomeOf is the outcome of a request whose attempt was settled as this state.
func outcomeOf(s State) Outcome {
	switch s {
	case StateCompleted, StateExpired:
		return OutcomeCompleted
	case StateReleased:
		return OutcomeReleased
	case StateUnknown:
		return OutcomeUnknown
	}
	return OutcomeUnsettled
}

// span names the trace of the step, to be kept with the response.
func (s *step) span() (span Span) {
	if s.trace == nil {
		return Span{}
	}
	defer func() { _ = recover() }()
	return s.engine.cfg.telemetry.Span(s.trace)
}
