package idem

import (
	"context"
	"errors"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// observe reports an event of a request.
func (c *core) observe(ctx context.Context, r *request, ev telemetry.Event) {
	ev.Route, ev.KeyID = r.Policy.Name, r.id
	c.report(ctx, ev)
}

// report tells the telemetry and the observers of an event.
func (c *core) report(ctx context.Context, ev telemetry.Event) {
	if c.cfg.telemetry != nil {
		tell(ctx, c.cfg.telemetry.Event, ev)
	}
	for _, fn := range c.cfg.observers {
		tell(ctx, fn, ev)
	}
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

// ReportUnprotected is for adapters. It reports a request without a key that goes to its
// handler, on a route with optional keys.
func (e *Engine) ReportUnprotected(ctx context.Context, route string) {
	ctx, step := e.startRequest(ctx, route)
	defer step.report(telemetry.StepEnd{Route: route, Outcome: telemetry.OutcomeUnprotected})
	e.report(ctx, telemetry.Event{Type: telemetry.EventUnprotected, Route: route})
}
