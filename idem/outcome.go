package idem

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// run is one attempt of a request in any mode, from Begin to its settlement. It knows what the handler
// has done, what that means for the record, and what the client is told.
type run struct {
	*request
	begun
	execution  *execution
	response   Response          // of the handler
	err        error             // of the handler
	cut        bool              // the context had ended when the handler returned
	settlement driver.Settlement // for the store; it names the attempt from the start
	started    time.Time         // by our clock; the record has the time of the store
	span       driver.Span       // of the handler, if that is recorded
}

func newRun(r *request, b begun) *run {
	return &run{request: r, begun: b, settlement: driver.Settlement{Attempt: b.record.Attempt}, started: time.Now()}
}

// outcome reads what the handler returned and declared.
func (run *run) outcome() outcome {
	x, status := run.execution, run.response.Status
	switch {
	case x.misused.Load():
		return outcomeInDoubt
	case x.noEffect.Load():
		return outcomeNoEffect
	case run.err != nil:
		return outcomeInDoubt
	case x.refused.Load() && (run.cut || x.gated.Load() || x.known.Load()):
		return outcomeInDoubt
	case x.refused.Load():
		return outcomeNoEffect
	case run.cut:
		return classifyCut(run.Transport, status)
	}
	o := classify(run.Transport, run.Policy, status, x.gated.Load())
	if o == outcomeCompleted && run.rejected() {
		return outcomeNoEffect
	}
	return o
}

// rejected reports whether the handler has found fault with the request before it did anything, so that
// the corrected request may have the key. What the handler did elsewhere does not show. So with a route
// that calls other systems, and without a transaction, the policy has to say that nothing comes
// before the gate. The fence lets a handler act without the gate. An attempt in doubt has bound the key before.
func (run *run) rejected() bool {
	x, p := run.execution, run.Policy
	acted := x.gated.Load() || x.known.Load()
	stated := p.GateFirst
	if x.transaction() != nil {
		acted = x.gated.Load() || x.taken.Load() || x.keepWrites.Load()
		stated = !p.CallsOtherSystems // otherwise step 4 has bound the key
	}
	return rejects(run.Transport, run.response.Status) && stated && !acted && !run.startedFromDoubt()
}

// decide makes the settlement of an outcome. A completed one has a response. That of an outcome
// in doubt is kept for the operator and the resolver, and no client gets it.
func (run *run) decide(o outcome, resp *driver.Response) {
	s, p := &run.settlement, run.Policy
	s.ID, s.Response, s.ResultTTL, s.KeyTTL = s.Attempt.Nonce, resp, p.ResultTTL, p.KeyTTL
	s.Repair = &run.repair
	switch o {
	case outcomeCompleted:
		s.State = driver.StateCompleted
	case outcomeNoEffect:
		s.State, s.Response = driver.StateReleased, nil
	default:
		s.State = driver.StateUnknown
		if resp != nil && resp.Size() > maxResponseInDoubt {
			s.Response = &driver.Response{Status: resp.Status, Omitted: true}
		}
	}
	if s.Response != nil {
		s.Response.Span = run.span
	}
}

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

// abandon reports an outcome that will not be settled. told says that the client has the
// outcome, or gets it now.
func (c *core) abandon(ctx context.Context, run *run, told bool, err error) {
	s := &run.settlement
	c.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventSettleAbandoned, Attempt: s.Attempt, State: s.State, Err: err})
	if told && s.State == driver.StateCompleted {
		c.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventUnstored, Attempt: s.Attempt, Err: err})
	}
}

// settledEvents are the events of an attempt that its holder settled.
var settledEvents = map[driver.State]telemetry.EventType{
	driver.StateUnknown:   telemetry.EventUnknown,
	driver.StateCompleted: telemetry.EventCompleted,
	driver.StateReleased:  telemetry.EventReleased,
}

// ended reports the end of an attempt. A released token is issued again, and a rolled-back
// transaction leaves the record of before, so the event says what the attempt became.
func (c *core) ended(ctx context.Context, run *run, t telemetry.EventType, state driver.State, cause error) {
	settled := state
	switch t {
	case telemetry.EventReleased:
		settled = driver.StateReleased
	case telemetry.EventUnknown:
		settled = driver.StateUnknown
	}
	run.telemetry.settled.Store(uint32(settled))
	if resp := run.settlement.Response; t == telemetry.EventCompleted && cause == nil && resp != nil && resp.Omitted {
		cause = errNotKept
	}
	c.observe(ctx, run.request, telemetry.Event{Type: t, Attempt: run.settlement.Attempt, State: state, Duration: time.Since(run.started), Err: cause})
}

// errNotKept says that an outcome is stored, and its response is not.
var errNotKept = errors.New("idem: the response was not kept, because it was streamed or too long: repeats get result-unavailable")

// Transport is the kind of a request. It decides which statuses settle an attempt. It is part
// of the operation in a fingerprint.
type Transport uint8

// The transports.
const (
	// TransportDirect is a call of [Engine.Do] by a queue consumer or a job. A nil error is
	// completed, and any other error is in doubt. A repeat never gets a nil error while the
	// outcome is not known.
	TransportDirect Transport = iota
	// TransportHTTP reads Response.Status as an HTTP status.
	TransportHTTP
	// TransportGRPC reads Response.Status as a gRPC code.
	TransportGRPC
)

// outcome is the meaning of a result for the attempt.
type outcome uint8

const (
	outcomeInDoubt   outcome = iota // may or may not have taken effect
	outcomeCompleted                // final, and repeats get this answer
	outcomeNoEffect                 // nothing happened, and a repeat runs afresh
)

// classify reads the result of a handler. First come the statuses that the policy of the route names, then
// the tables of all routes. gated says that the attempt passed the gate before
// an irreversible send ([CheckOwner] or [DownstreamKey]). Statuses for "not admitted" may
// then come from further down, so the outcome is in doubt.
func classify(t Transport, p *Policy, status int, gated bool) outcome {
	if t != TransportDirect && slices.Contains(p.StatusesInDoubt, status) {
		return outcomeInDoubt
	}
	o := outcomeCompleted
	switch t {
	case TransportHTTP:
		o = classifyHTTP(status)
	case TransportGRPC:
		o = classifyGRPC(status)
	case TransportDirect:
	}
	if gated && o == outcomeNoEffect {
		return outcomeInDoubt
	}
	return o
}

// classifyCut reads the result of a handler whose context ended first, by the deadline or with
// the lease. It believes only a success. A refusal may come from the cancellation.
func classifyCut(t Transport, status int) outcome {
	if succeeded(t, status) {
		return outcomeCompleted
	}
	return outcomeInDoubt
}

func succeeded(t Transport, status int) bool {
	switch t {
	case TransportHTTP:
		return status >= 200 && status < 400
	case TransportGRPC:
		return status == grpcOK
	default:
		return true
	}
}

func classifyHTTP(status int) outcome {
	switch {
	case status == 401, status == 403, status == 425, status == 429:
		return outcomeNoEffect
	case status < 200, undecidedHTTP(status):
		return outcomeInDoubt
	}
	return outcomeCompleted
}

// undecided reports whether a status says by itself that nothing is decided, to every client.
// Only such an answer may reach the client while the outcome is in doubt.
func undecided(t Transport, status int) bool {
	switch t {
	case TransportHTTP:
		return undecidedHTTP(status)
	case TransportGRPC:
		return classifyGRPC(status) == outcomeInDoubt
	default:
		return false
	}
}

// undecidedHTTP names 499 too. Gateways write it for a call that was cancelled in its middle.
func undecidedHTTP(status int) bool { return status == 408 || status == 499 || status >= 500 }

// rejects reports whether a status says that something is wrong with the request itself, so that it has to
// be corrected.
func rejects(t Transport, status int) bool {
	switch t {
	case TransportHTTP:
		return status == 400 || status == 415 || status == 422
	case TransportGRPC:
		return status == grpcInvalidArgument
	default:
		return false
	}
}

func classifyGRPC(code int) outcome {
	switch code {
	case grpcUnauthenticated, grpcPermissionDenied, grpcResourceExhausted:
		return outcomeNoEffect
	case grpcOK, grpcInvalidArgument, grpcNotFound, grpcAlreadyExists,
		grpcFailedPrecondition, grpcOutOfRange, grpcUnimplemented:
		return outcomeCompleted
	}
	return outcomeInDoubt
}
