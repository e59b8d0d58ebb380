package idem

import (
	"context"
	"errors"
	"fmt"
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
	execution  execution
	lease      Lease
	response   Response   // the handler's
	err        error      // the handler's
	cut        bool       // its context had ended when it returned
	settlement Settlement // what the store is told of the outcome; of which attempt, from the start
	entry      runningEntry
	started    time.Time // by our clock; the record has it by the store's
	misbehaved int       // how often the store broke its contract while it was saved
	told       bool      // its client is answered with its outcome before that is stored
}

// rerun reports whether the attempt that has begun started over from one in doubt.
// Then it must not be released.
func (r *request) rerun() bool { return r.restore.Replaced.State.Open() }

// lost reports whether the lease ended under the handler.
func (run *run) lost() bool { return run.lease.Err() != nil }

// live is the answer to the request that was executed.
func (run *run) live(resp *Response) Result {
	res := Result{Attempt: run.settlement.Attempt.Number}
	if resp != nil {
		res.Response = *resp
	}
	return res
}

// repeatable is what a duplicate that waited is given; nil where it has to
// look for itself.
func (run *run) repeatable(resp *Response) *Result {
	if resp == nil || resp.Omitted {
		return nil
	}
	return &Result{Response: *resp, Replayed: true, Attempt: run.settlement.Attempt.Number}
}

var settledEvents = [...]EventType{
	outcomeInDoubt:   EventUnknown,
	outcomeCompleted: EventCompleted,
	outcomeNoEffect:  EventReleased,
}

// settle makes the settlement of an outcome.
func (run *run) settle(o outcome, resp *Response) {
	s, p := &run.settlement, run.Policy
	s.ID, s.Response, s.ResultTTL, s.KeyTTL = s.Attempt.Nonce, resp, p.ResultTTL, p.KeyTTL
	switch o {
	case outcomeCompleted:
		s.State = StateCompleted
		if resp == nil {
			s.Response = &Response{Omitted: true}
		}
	case outcomeNoEffect:
		s.State, s.Response = StateReleased, nil
	default:
		s.State = StateUnknown
		if run.lost() { // what it answered is about its lease, not the operation
			s.Response = nil
		}
		if s.Response != nil && succeeded(run.Transport, s.Response.Status) { // a repeat would take it for the outcome
			s.Response = nil
		}
		if s.Response != nil && s.Response.size() > p.MaxResponseInDoubt {
			s.Response = &Response{Status: s.Response.Status, Omitted: true}
		}
	}
}

// setAside reports what has become of an attempt whose settlement does not stand.
// told says that its client is answered with its own outcome all the same.
func (e *Engine) setAside(ctx context.Context, run *run, told bool, cause error) {
	rec := &run.seen.Record
	if told && run.settlement.State == StateCompleted && rec.State != StateCompleted && rec.State != StateExpired {
		err := fmt.Errorf("idem: the store has attempt %d, %v", rec.Attempt.Number, rec.State)
		e.ended(ctx, run, EventUnstored, errors.Join(err, cause))
		return
	}
	e.ended(ctx, run, EventSuperseded, cause)
}

// replay is the stored outcome of a record.
func replay(rec *Record) *Result {
	return &Result{Response: *rec.Response, Replayed: true, Attempt: rec.Attempt.Number}
}

// unknown answers a request whose outcome is not known: with the response of the
// attempt itself, if there is one and its status can say so. A caller of
// [Engine.Do] reads a nil error as success, so it is refused instead.
func (r *request) unknown(rec *Record) (*Result, error) {
	if r.Transport != TransportDirect && rec.Response != nil && !rec.Response.Omitted {
		return replay(rec), nil
	}
	return nil, refuse(CodeOutcomeUnknown, rec.ResponseErr)
}

// deref is a result, or none.
//
//go:noinline
func deref(res *Result) Result {
	if res == nil {
		return Result{}
	}
	return *res
}

// used reports whether a key in this state has been executed, or may have been.
func used(s State) bool { return s != StateNone && s != StateIssued && s != StateReleased }

// failOpen runs the handler without protection where the policy says so, the
// refusal is that something could not be reached, and nothing is known of an
// attempt: that one runs, is in doubt, was completed with a response that cannot
// be read, or has a record that cannot be read.
func (e *Engine) failOpen(ctx context.Context, r *request, h Handler, err error) (Result, error) {
	refusal, ok := errors.AsType[*Refusal](err)
	if !ok || !r.Policy.FailOpen || r.open || used(r.seen.Record.State) || refusal.Code != CodeUnavailable || unreadable(err) || ctx.Err() != nil {
		return Result{}, err
	}
	e.observe(ctx, r, &Event{Type: EventFailedOpen, Err: refusal.Err})
	var x execution
	x.init(context.WithoutCancel(ctx), e, r, nil, Attempt{}, r.Policy.HandlerTimeout)
	defer x.end()
	resp, err := h(&x)
	return Result{Response: resp}, err
}
