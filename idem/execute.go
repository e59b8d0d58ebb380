package idem

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

var (
	errPanic  = errors.New("idem: handler panicked")
	errClosed = errors.New("idem: engine is closed")
)

// run is one attempt of a request, from Begin to its settlement.
type run struct {
	*request
	execution  *execution
	lease      driver.Lease      // nil in joined mode
	tx         driver.JoinedTx   // nil unless in joined mode
	retry      bool              // the handler may run again after a conflict
	response   Response          // of the handler
	err        error             // of the handler
	cut        bool              // the context had ended when the handler returned
	settlement driver.Settlement // for the store; it names the attempt from the start
	started    time.Time         // by our clock; the record has the time of the store
	span       driver.Span       // of the handler, if that is recorded
	misbehaved int               // how often the store broke its contract in answers to Settle
}

// execute is step 6: it runs the handler.
func (e *Engine) execute(ctx context.Context, r *request, lease driver.Lease, h Handler) *run {
	attempt := r.record.Attempt
	run := &run{request: r, lease: lease, settlement: driver.Settlement{Attempt: attempt}, started: time.Now()}
	r.telemetry.attempt = attempt.Number
	inner, step := e.startStep(ctx, telemetry.StepHandler, r)
	run.span = step.span()
	x := e.newExecution(inner, r, lease, attempt, r.Policy.HandlerTimeout)
	run.execution = x
	defer x.end()
	e.handlerStarted(ctx, run)
	defer e.handlerEnded(run)

	returned := false
	defer func() {
		x.ended.Store(true)
		if !returned { // a panic or runtime.Goexit, which goes on after the attempt is settled
			run.err = errPanic
			step.end(r, errPanic)
			_, _ = e.finish(ctx, run, outcomeInDoubt, nil, errPanic)
		}
	}()
	run.response, run.err = h(x)
	returned = true
	run.cut = x.Err() != nil // before telemetry, which may take its time
	step.end(r, run.err)
	return run
}

// startedFromDoubt reports whether the new attempt started from one in doubt. Then the engine
// must not release it.
func (r *request) startedFromDoubt() bool { return r.repair.Replaced.State.Open() }

// lost reports whether the lease ended under the handler. A transaction has none.
func (run *run) lost() bool { return run.lease != nil && run.lease.Err() != nil }

// live is the handler's answer to the request that was executed.
func (run *run) live() *Result {
	return &Result{Response: run.response, Attempt: run.settlement.Attempt.Number}
}

// tell answers the request that was executed, unless it gets a stored outcome. o is what the
// handler's answer means, and free says that a repeat runs afresh. The client gets the answer
// only if it cannot read more into it than is known. It takes 402 for final, whatever the
// record says.
func (run *run) tell(o outcome, free bool) (*Result, error) {
	switch {
	case run.err != nil && run.Transport == TransportDirect: // the caller knows what it means
		return nil, run.err
	case run.err != nil:
		return nil, run.outcomeUnknown(free, run.err)
	case o != outcomeInDoubt, undecided(run.Transport, run.response.Status):
		return run.live(), nil
	case free:
		return nil, run.refuse(CodeUnavailable, errNotTold)
	}
	return nil, run.outcomeUnknown(false, errNotTold)
}

// errNotTold says that the client did not get the answer of the handler.
var errNotTold = errors.New("idem: the handler's answer reads as final, and the outcome is in doubt")

// refuse makes a refusal of the request that was executed.
func (run *run) refuse(code Code, err error) *Refusal {
	r := refuse(code, err)
	r.OperationID, r.MayHaveHappened = run.id.OperationID(), run.outcome() != outcomeNoEffect || run.startedFromDoubt()
	return r
}

// outcomeUnknown refuses the request that was executed. It asks the client to come again if a
// repeat runs, or if something works on the outcome.
func (run *run) outcomeUnknown(free bool, err error) *Refusal {
	r := run.refuse(CodeOutcomeUnknown, err)
	if free || run.Policy.settles(run.settlement.Attempt) {
		r.RetryAfter = defaultRetryAfter
	}
	return r
}

// unknown refuses a repeat whose outcome is not known. works says that a resolver works on it,
// so that it helps to come again.
func (r *request) unknown(rec *driver.Record, works bool) *Refusal {
	refusal := refuse(CodeOutcomeUnknown, rec.ResponseErr)
	if works {
		refusal.RetryAfter = defaultRetryAfter
	}
	return refusal
}

// repeatable is the result for the duplicates that waited. It is nil if they have to read the
// record.
func (run *run) repeatable(resp *driver.Response) *Result {
	if resp.Omitted {
		return nil
	}
	return replayOf(resp, run.settlement.Attempt)
}

// replay is the stored outcome of a completed record.
func replay(rec *driver.Record) *Result {
	return replayOf(rec.Response, rec.Attempt)
}

// replayOf is a stored outcome as a repeat gets it.
func replayOf(resp *driver.Response, attempt driver.Attempt) *Result {
	return &Result{Response: Response(*resp), Replayed: true, Attempt: attempt.Number}
}

// used reports whether a key in this state has been executed, or may have been.
func used(s driver.State) bool {
	return s != driver.StateNone && s != driver.StateIssued && s != driver.StateReleased
}

// failOpen runs the handler without protection. It does so only if the policy allows that, if
// the lock or the store cannot be reached, and if no attempt of the key is known. An attempt is
// known if it runs, is in doubt or was completed, or if its record cannot be read. In joined mode
// there is no transaction without the store, so nothing runs.
func (e *Engine) failOpen(ctx context.Context, r *request, h Handler, err error) (*Result, error) {
	refusal, ok := errors.AsType[*Refusal](err)
	if !ok || !r.Policy.FailOpen || e.joined != nil || r.open || used(r.record.State) || refusal.Code != CodeUnavailable || unreadable(err) || ctx.Err() != nil {
		return nil, err
	}
	if !e.work.startHandler() {
		return nil, refuse(CodeUnavailable, errClosed)
	}
	defer e.work.endHandler()
	e.observe(ctx, r, telemetry.Event{Type: telemetry.EventFailedOpen, Err: refusal.Err})
	r.telemetry.failedOpen = true
	inner, step := e.startStep(context.WithoutCancel(ctx), telemetry.StepHandler, r)
	x := e.newExecution(inner, r, nil, driver.Attempt{}, r.Policy.HandlerTimeout)
	defer x.end()
	res, handlerErr := &Result{}, errPanic // unless the handler returns
	defer func() { step.end(r, handlerErr) }()
	res.Response, handlerErr = h(x)
	return res, handlerErr
}
