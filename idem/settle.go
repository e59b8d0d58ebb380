package idem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// conclude decides the outcome of the handler, then takes steps 7 and 8.
func (e *Engine) conclude(ctx context.Context, run *run) (*Result, error) {
	o := run.outcome()
	if o == outcomeNoEffect && run.startedFromDoubt() { // the earlier attempt may have had an effect
		o = outcomeInDoubt
	}
	if run.err != nil {
		return e.finish(ctx, run, o, nil, run.err)
	}
	return e.finish(ctx, run, o, (*driver.Response)(&run.response), nil)
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
	case run.Transport != TransportDirect && slices.Contains(run.Policy.StatusesInDoubt, status):
		return outcomeInDoubt
	}
	return classify(run.Transport, status, x.gated.Load())
}

// finish is steps 7 and 8. resp is nil if the handler returned an error, which is the cause then.
func (e *Engine) finish(ctx context.Context, run *run, o outcome, resp *driver.Response, cause error) (*Result, error) {
	if run.lost() {
		e.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventOwnershipLost, Attempt: run.settlement.Attempt, Err: run.lease.Err()})
	}
	run.decide(o, resp)
	var settled, told bool
	err := e.inStep(ctx, telemetry.StepSettle, run.request, 0, func(ctx context.Context) (err error) {
		settled, told, err = e.settle(ctx, run)
		return err
	})
	run.handedOver = true
	switch {
	case err != nil && !told:
		return nil, withCause(run.refuse(CodeOwnershipLost, err), cause)
	case err != nil:
		return run.tell(o, o == outcomeNoEffect) // an event tells the error
	}
	return e.answer(ctx, run, o, resp, cause, settled)
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

// settle is step 7. It settles the attempt in the store and retries for the settle time-out.
// After an error it goes on in the background, with the lock held and duplicates in this
// process refused, until the store has answered or the engine gives up. If a retry cannot help,
// it gives up at once. After an error, told says that the lease was not lost, so the client
// gets its own outcome all the same.
func (e *Engine) settle(ctx context.Context, run *run) (settled, told bool, err error) {
	giveUp := time.Now().Add(e.cfg.settleTimeout)
	pause := backoff{first: 20 * time.Millisecond, most: time.Second}
	for {
		settled, err := e.settleOnce(ctx, run, time.Until(giveUp))
		if err == nil {
			return settled, false, nil
		}
		if run.hopeless(err) {
			told = !run.lost()
			e.abandon(ctx, run, told, err)
			run.lease.ReleaseInBackground()
			return false, told, err
		}
		left := time.Until(giveUp)
		if left <= 0 || !sleep(e.work.ctx, min(pause.next(), left)) {
			told = !run.lost()
			e.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventSettleDelayed, Attempt: run.settlement.Attempt, State: run.settlement.State, Err: err})
			e.settleInBackground(ctx, run, told)
			return false, told, err
		}
	}
}

// settleInBackground is step 7 after the answer. told says that the client has the outcome.
func (e *Engine) settleInBackground(ctx context.Context, run *run, told bool) {
	first := run.first
	run.first = nil // its duplicates wait until the attempt is settled
	e.inBackground(ctx, run.request, func(stop context.Context) {
		var result *Result
		defer func() { e.endWait(first, result) }()
		pause := backoff{first: 50 * time.Millisecond, most: time.Second}
		for {
			settled, err := e.settleOnce(stop, run, patient)
			switch {
			case err == nil && settled:
				e.ended(ctx, run, settledEvents[run.settlement.State], nil)
				if run.settlement.State == driver.StateCompleted {
					result = run.repeatable(run.settlement.Response)
				}
				run.mark()
			case err == nil:
				e.superseded(ctx, run, told, nil)
				run.mark()
			case run.hopeless(err):
				e.abandon(ctx, run, told, err)
			case sleep(stop, pause.next()):
				continue
			default: // the lock outlives this engine, and ends with its session
				e.abandon(ctx, run, told, err)
				return
			}
			run.lease.ReleaseInBackground()
			return
		}
	})
}

// patient is for a call that no client waits for.
const patient = time.Hour

// settleOnce is one try of step 7. left is the time that the caller still has. The store may repair a record that it
// has lost, or that fell back to its form before the attempt.
func (e *Engine) settleOnce(ctx context.Context, run *run, left time.Duration) (settled bool, err error) {
	s := &run.settlement
	s.LeaseTrusted = !run.lost()
	res, err := e.callSettle(ctx, run.request, s, left)
	rec := &res.Record
	if res.Repaired {
		e.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventRepaired, Attempt: s.Attempt, State: rec.State})
	}
	switch {
	case errors.Is(err, driver.ErrResponseInvalid):
		err = fmt.Errorf("%w: it refuses a settlement without a response: %w", errMisbehaves, err)
	case err == nil && !res.Settled && rec.State.Open() && rec.Attempt == s.Attempt:
		err = fmt.Errorf("%w: it left an open attempt as it was", errMisbehaves)
	}
	return res.Settled, err
}

// settleRate is how many bytes of a response a settlement carries in a second at least.
const settleRate = 256 << 10

// callSettle calls the store. If the store cannot hold the response, callSettle settles without
// it, because the outcome stands. A large response takes longer on a slow link, so its call gets more than
// the usual time if the caller has as much left. Otherwise it could never be stored.
func (e *Engine) callSettle(ctx context.Context, r *request, s *driver.Settlement, left time.Duration) (res driver.SettleResult, err error) {
	defer recovered("Settle", &err)
	timeout := e.cfg.storeTimeout
	if s.Response != nil {
		timeout += time.Duration(s.Response.Size()) * time.Second / settleRate
	}
	call, cancel := context.WithTimeout(ctx, min(timeout, max(left, e.cfg.storeTimeout)))
	defer cancel()
	res, err = e.store.Settle(call, r.id, *s)
	if errors.Is(err, driver.ErrResponseInvalid) && s.Response != nil && !s.Response.Omitted {
		s.Response = &driver.Response{Status: s.Response.Status, Omitted: true, Span: s.Response.Span}
		return e.callSettle(ctx, r, s, left)
	}
	r.record = res.Record
	return res, err
}

// errMisbehaves says that a store broke its contract in its answer to Settle.
var errMisbehaves = errors.New("idem: the token store breaks its contract")

// mostMisbehaviour is how many such answers end the tries to settle.
const mostMisbehaviour = 5

// hopeless reports whether another try cannot help. The store has given its final answer, or it
// keeps breaking its contract.
func (run *run) hopeless(err error) bool {
	if errors.Is(err, errMisbehaves) {
		run.misbehaved++
	}
	return unreadable(err) || run.misbehaved >= mostMisbehaviour
}

// abandon reports an outcome that will not be settled. told says that the client has the
// outcome, or gets it now.
func (e *Engine) abandon(ctx context.Context, run *run, told bool, err error) {
	s := &run.settlement
	e.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventSettleAbandoned, Attempt: s.Attempt, State: s.State, Err: err})
	if told && s.State == driver.StateCompleted {
		e.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventUnstored, Attempt: s.Attempt, Err: err})
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
func (e *Engine) ended(ctx context.Context, run *run, t telemetry.EventType, cause error) {
	settled := run.record.State
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
	e.observe(ctx, run.request, telemetry.Event{Type: t, Attempt: run.settlement.Attempt, State: run.record.State, Duration: time.Since(run.started), Err: cause})
}

// errNotKept says that an outcome is stored, and its response is not.
var errNotKept = errors.New("idem: the response was not kept, because it was streamed or too long: repeats get result-unavailable")

// superseded reports an attempt that was settled in another way. told says that the client gets
// its own outcome all the same.
func (e *Engine) superseded(ctx context.Context, run *run, told bool, cause error) {
	rec := &run.record
	if told && run.settlement.State == driver.StateCompleted && rec.State != driver.StateCompleted && rec.State != driver.StateExpired {
		err := fmt.Errorf("idem: the store has attempt %d, %v", rec.Attempt.Number, rec.State)
		e.ended(ctx, run, telemetry.EventUnstored, errors.Join(err, cause))
		return
	}
	e.ended(ctx, run, telemetry.EventSuperseded, cause)
}

// answer is step 8. The store has answered, and answer gives the outcome to the client and
// releases the lock. settled is false if an operator or the resolver of the next holder settled
// the attempt first.
func (e *Engine) answer(ctx context.Context, run *run, o outcome, resp *driver.Response, cause error, settled bool) (*Result, error) {
	run.mark()
	if !settled {
		lost := run.lost()
		e.superseded(ctx, run, !lost, cause)
		run.lease.ReleaseInBackground()
		switch {
		case run.record.State == driver.StateCompleted:
			res, err := e.judge(run.request, &run.record)
			return res, withCause(err, cause)
		case lost:
			err := fmt.Errorf("idem: attempt %d was settled by others as %v", run.settlement.Attempt.Number, run.record.State)
			return nil, withCause(run.refuse(CodeOwnershipLost, err), cause)
		}
		return run.tell(o, run.record.State == driver.StateReleased)
	}
	e.ended(ctx, run, settledEvents[run.settlement.State], cause)
	switch o {
	case outcomeCompleted:
		// Repeats read the record first, so the release may follow the answer.
		run.lease.ReleaseInBackground()
		e.endFirst(run.request, run.repeatable(resp))
	case outcomeNoEffect:
		// An immediate retry takes the lock, so it has to be free before the answer.
		e.release(ctx, run.request, run.lease)
	default:
		return e.inDoubt(ctx, run, cause)
	}
	return run.tell(o, o == outcomeNoEffect)
}

// release gives the lock back and waits for it. After a failure the lease tries again in
// the background.
func (e *Engine) release(ctx context.Context, r *request, lease driver.Lease) {
	call, cancel := context.WithTimeout(ctx, e.cfg.lockTimeout)
	defer cancel()
	if err := callRelease(call, lease); err != nil {
		e.observe(ctx, r, telemetry.Event{Type: telemetry.EventReleaseFailed, Attempt: r.record.Attempt, Err: err})
	}
}

func callRelease(ctx context.Context, lease driver.Lease) (err error) {
	defer recovered("Release", &err)
	return lease.Release(ctx)
}
