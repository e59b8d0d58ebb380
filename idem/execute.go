package idem

import (
	"context"
	"errors"
	"time"
)

var (
	errPanic  = errors.New("idem: handler panicked")
	errClosed = errors.New("idem: engine is closed")

	errEarlierInDoubt = errors.New("idem: this attempt had no effect, and the one before it is in doubt")
)

// run is one attempt of a request, from Begin to its settlement.
type run struct {
	*request
	execution  *execution
	lease      Lease      // nil in joined mode
	tx         JoinedTx   // nil unless in joined mode
	retry      bool       // the handler may run again after a conflict
	response   Response   // of the handler
	err        error      // of the handler
	cut        bool       // the context had ended when the handler returned
	settlement Settlement // for the store; it names the attempt from the start
	started    time.Time  // by our clock; the record has the time of the store
	span       Span       // of the handler, if that is recorded
	misbehaved int        // how often the store broke its contract in answers to Settle
}

// execute is step 6: it runs the handler.
func (e *Engine) execute(ctx context.Context, r *request, lease Lease, h Handler) *run {
	attempt := r.record.Attempt
	run := &run{request: r, lease: lease, settlement: Settlement{Attempt: attempt}, started: time.Now()}
	r.telemetry.attempt = attempt.Number
	inner, step := e.startStep(ctx, StepHandler, r)
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
			step.end(r, errPanic)
			_, _ = e.finish(ctx, run, outcomeInDoubt, crashResponse(r.Transport), errPanic)
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

// live is the answer to the request that was executed.
func (run *run) live(resp *Response) *Result {
	res := &Result{Attempt: run.settlement.Attempt.Number}
	if resp != nil {
		res.Response = *resp
	}
	return res
}

// repeatable is the result for the duplicates that waited. It is nil if they have to read the
// record.
func (run *run) repeatable(resp *Response) *Result {
	if resp.Omitted {
		return nil
	}
	return &Result{Response: *resp, Replayed: true, Attempt: run.settlement.Attempt.Number}
}

// replay is the stored outcome of a record.
func replay(rec *Record) *Result {
	return &Result{Response: *rec.Response, Replayed: true, Attempt: rec.Attempt.Number}
}

// unknown answers a request if its outcome is not known. The answer is the response of the
// attempt itself, if there is one and its status can express doubt. A caller of [Engine.Do]
// reads a nil error as success, so it gets a refusal instead.
func (r *request) unknown(rec *Record) (*Result, error) {
	if r.Transport != TransportDirect && rec.Response != nil && !rec.Response.Omitted {
		return replay(rec), nil
	}
	return nil, refuse(CodeOutcomeUnknown, rec.ResponseErr)
}

// used reports whether a key in this state has been executed, or may have been.
func used(s State) bool { return s != StateNone && s != StateIssued && s != StateReleased }

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
	e.observe(ctx, r, Event{Type: EventFailedOpen, Err: refusal.Err})
	r.telemetry.failedOpen = true
	inner, step := e.startStep(context.WithoutCancel(ctx), StepHandler, r)
	x := e.newExecution(inner, r, nil, Attempt{}, r.Policy.HandlerTimeout)
	defer x.end()
	res, handlerErr := &Result{}, errPanic // unless the handler returns
	defer func() { step.end(r, handlerErr) }()
	res.Response, handlerErr = h(x)
	return res, handlerErr
}
