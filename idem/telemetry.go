package idem

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// requestTelemetry is what the telemetry needs to know of a request.
type requestTelemetry struct {
	trace      any           // of the whole request
	attempt    uint32        // the number of the attempt whose handler ran, or 0
	failedOpen bool          // the handler ran without protection
	settled    atomic.Uint32 // the State of the record after the attempt, StateNone until it is known
}

// step is a step that runs. It does nothing without telemetry.
type step struct {
	core    *core
	ctx     context.Context
	trace   any
	kind    telemetry.Step
	started time.Time
}

// startStep starts a step of a request and returns the context for it.
func (c *core) startStep(ctx context.Context, kind telemetry.Step, r *request) (inner context.Context, s step) {
	if c.cfg.telemetry == nil {
		return ctx, step{}
	}
	return c.start(ctx, telemetry.StepStart{Step: kind, Route: r.Policy.Name, Request: r.telemetry.trace})
}

// inStep runs fn as a step of a request. The context of fn has this time-out; 0 is none.
func (c *core) inStep(ctx context.Context, kind telemetry.Step, r *request, timeout time.Duration, fn func(ctx context.Context) error) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	ctx, step := c.startStep(ctx, kind, r)
	err := fn(ctx)
	step.end(r, err)
	return err
}

// startRequest starts the step of a whole request.
func (c *core) startRequest(ctx context.Context, route string) (inner context.Context, s step) {
	if c.cfg.telemetry == nil {
		return ctx, step{}
	}
	return c.start(ctx, telemetry.StepStart{Step: telemetry.StepRequest, Route: route})
}

// start starts a step. It stops a panic of the telemetry, as tell does.
func (c *core) start(ctx context.Context, start telemetry.StepStart) (inner context.Context, s step) {
	defer func() {
		if recover() != nil {
			inner, s = ctx, step{}
		}
	}()
	inner, trace := c.cfg.telemetry.StartStep(ctx, start)
	if inner == nil {
		return ctx, step{}
	}
	return inner, step{core: c, ctx: inner, trace: trace, kind: start.Step, started: time.Now()}
}

// end ends a step of a request.
func (s *step) end(r *request, err error) {
	if s.core != nil {
		s.report(telemetry.StepEnd{Route: r.Policy.Name, KeyID: r.id, Attempt: r.telemetry.attempt, Err: err})
	}
}

// report ends a step. It stops a panic of the telemetry, as tell does.
func (s *step) report(end telemetry.StepEnd) {
	if s.core == nil {
		return
	}
	defer func() { _ = recover() }()
	end.Step, end.Duration = s.kind, time.Since(s.started)
	s.core.cfg.telemetry.EndStep(s.ctx, s.trace, end)
}

// endRequest ends the step of the whole request. r is nil if the request was not admitted.
func (s *step) endRequest(route string, r *request, res *Result, err error) {
	if s.core == nil {
		return
	}
	end := telemetry.StepEnd{Route: route, Err: err}
	if r != nil {
		end.Route, end.KeyID, end.Attempt = r.Policy.Name, r.id, r.telemetry.attempt
	}
	refusal, refused := asRefused(err)
	switch {
	case refused && r != nil && r.telemetry.attempt > 0 && refusal.Code == CodeOutcomeUnknown:
		end.Outcome, end.Code, end.Err = telemetry.OutcomeUnknown, string(refusal.Code), refusal.Err
	case refused:
		end.Outcome, end.Code, end.Err = telemetry.OutcomeRefused, string(refusal.Code), refusal.Err
	case r == nil:
	case res != nil && res.Replayed:
		end.Outcome, end.Attempt, end.Origin = telemetry.OutcomeReplayed, res.Attempt, res.Response.Span
	case r.telemetry.failedOpen:
		end.Outcome = telemetry.OutcomeFailedOpen
	default:
		end.Outcome = outcomeOf(driver.State(r.telemetry.settled.Load()))
	}
	s.report(end)
}

// outcomeOf is the outcome of a request whose attempt was settled as this state.
func outcomeOf(s driver.State) telemetry.Outcome {
	switch s {
	case driver.StateCompleted, driver.StateExpired:
		return telemetry.OutcomeCompleted
	case driver.StateReleased:
		return telemetry.OutcomeReleased
	case driver.StateUnknown:
		return telemetry.OutcomeUnknown
	}
	return telemetry.OutcomeUnsettled
}

// span names the trace of the step, to be kept with the response.
func (s *step) span() (span driver.Span) {
	if s.trace == nil {
		return driver.Span{}
	}
	defer func() { _ = recover() }()
	return s.core.cfg.telemetry.Span(s.trace)
}

// observe reports an event of a request.
func (c *core) observe(ctx context.Context, r *request, ev telemetry.Event) {
	ev.Route, ev.KeyID = r.Policy.Name, r.id
	c.report(ctx, ev)
}

// report tells the telemetry, the observers and the log of an event.
func (c *core) report(ctx context.Context, ev telemetry.Event) {
	if c.cfg.telemetry != nil {
		tell(ctx, c.cfg.telemetry.Event, ev)
	}
	for _, fn := range c.cfg.observers {
		tell(ctx, fn, ev)
	}
	c.logFault(ctx, &ev)
}

// tell calls an observer. It stops a panic of the observer, because the panic would leave a
// lock behind, or end the process.
func tell(ctx context.Context, fn telemetry.Observer, ev telemetry.Event) {
	defer func() { _ = recover() }()
	fn(ctx, ev)
}

// refused reports a refusal. If the outcome is in doubt, the client gets the ID of the operation.
func (c *core) refused(ctx context.Context, p *Policy, id driver.KeyID, err error) (Result, error) {
	if refusal, ok := asRefused(err); ok {
		ev := telemetry.Event{Type: telemetry.EventRefused, KeyID: id, Code: string(refusal.Code), Err: refusal.Err}
		if p != nil {
			ev.Route = p.Name
		}
		c.report(ctx, ev)
	}
	if refusal, ok := err.(*Refusal); ok && refusal.Code == CodeOutcomeUnknown && refusal.OperationID == "" && id != (driver.KeyID{}) { //nolint:errorlint // a handler's error may wrap another one
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
	defer step.report(telemetry.StepEnd{Route: route, Outcome: telemetry.OutcomeRefused, Code: string(r.Code), Err: r.Err})
	e.report(ctx, telemetry.Event{Type: telemetry.EventRefused, Route: route, Code: string(r.Code), Err: r.Err})
}

// ReportMisused is for adapters. It reports middleware or a handler that keeps the adapter from
// knowing the answer of the execution of ctx. Its outcome is in doubt, whatever the handler has
// declared. Outside of an execution it does nothing.
func (e *Engine) ReportMisused(ctx context.Context, err error) {
	if x := executionOf(ctx); x != nil {
		x.misused.Store(true)
		e.observe(ctx, x.of, telemetry.Event{Type: telemetry.EventMisused, Attempt: x.attempt, Err: err})
	}
}
