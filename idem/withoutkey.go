package idem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// This file is about requests without a key, on routes that allow them while clients learn to send keys. Nothing protects such
// a request from its repeats. An engine from New leaves it to its handler. One from NewJoined gives the handler a transaction all the same, so
// that the handler is written once:
//
//	5  begin      open a transaction
//	6  execute    run the handler, with the transaction in its context
//	7  conclude   as with a key, but for the record:
//	     success, and a refusal after KeepWrites   commit
//	     anything else                             roll back
//	     COMMIT without an answer                  the outcome is unknown, because nothing tells it
//	     a conflict or a misuse, on a route        the outcome is unknown, and the handler does not run again,
//	     that calls other systems                  because no key would tell them that it is the same call
//	8  answer     the handler's answer, whatever its status is
//
// The client may know nothing of keys, and no record could contradict the handler. So the client gets the answer of the handler, except
// where that is known to be wrong or may be.

// ErrNoKey says that there is nothing to derive a key from, because the request came without one. On a route with
// [Policy].CallsOtherSystems the handler may send what it has to send, and a repeat of the request sends it again. The error wraps ErrNoExecution.
var ErrNoKey = fmt.Errorf("idem: the request came without a key, on a route where it is optional: %w", ErrNoExecution)

// What clients are told whose requests had no key.
const (
	adviceNotDone = "The request was not carried out; it may be sent again."
	adviceUnknown = "It is not known whether the request took effect. It had no Idempotency-Key, so find out before you send it again."
)

// DoWithoutKey is for adapters, on a route whose key is optional. It runs the handler of a request without a key in a
// transaction of its own, ends that by the handler's answer, and returns once the end is known. It is for an engine from [NewJoined],
// and refuses as internal in any other. Of the operation it needs Transport and Policy, and Scope if that is known. The error is a
// [*Refusal].
func (e *Engine) DoWithoutKey(ctx context.Context, op Operation, h Handler) (_ Result, err error) {
	route := ""
	if op.Policy != nil {
		route = op.Policy.Name
	}
	ctx, step := e.startRequest(ctx, route)
	defer func() { step.endWithoutKey(route, err) }()
	e.withoutKey(ctx, route)
	m, joined := e.mode.(*joinedMode)
	if !joined || h == nil || op.Policy == nil {
		return e.refused(ctx, op.Policy, driver.KeyID{}, refuse(CodeInternal, errors.New("idem: DoWithoutKey needs an engine from NewJoined, a policy and a handler")))
	}
	r := &request{Operation: op}
	r.Key = ""
	if r.Policy, err = op.Policy.complete(); err != nil {
		return e.refused(ctx, op.Policy, driver.KeyID{}, refuse(CodeInternal, err))
	}
	if !op.RunOnce {
		r.retries = e.cfg.conflictRetries
	}
	if !e.work.add() {
		return e.refused(ctx, op.Policy, driver.KeyID{}, notDone(errClosed))
	}
	defer e.work.done()
	r.telemetry.trace = step.trace
	res, err := m.doWithoutKey(ctx, r, h)
	if err != nil {
		return e.refused(ctx, op.Policy, driver.KeyID{}, err)
	}
	return *res, nil
}

func (m *joinedMode) doWithoutKey(ctx context.Context, r *request, h Handler) (*Result, error) {
	defer m.limit.leave(r)
	if r.Scope != "" && m.limit.most > 0 {
		if err := m.limit.add(r, false); err != nil {
			return nil, err
		}
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, notDone(fmt.Errorf("%w: %w", errCallerGone, err))
		}
		res, err := m.attemptWithoutKey(context.WithoutCancel(ctx), r, h)
		if !errors.Is(err, errAgain) {
			return res, err
		}
	}
}

// attemptWithoutKey has the steps 5 to 8.
func (m *joinedMode) attemptWithoutKey(ctx context.Context, r *request, h Handler) (res *Result, err error) {
	run := &joinedRun{run: newRun(r, begun{})}
	err = m.inStep(ctx, telemetry.StepBegin, r, 0, func(ctx context.Context) (err error) {
		run.tx, err = m.callBeginWithoutKey(ctx, r)
		return err
	})
	if err != nil {
		return nil, notDone(err)
	}
	if !m.work.startHandler() {
		defer run.release(ctx)
		_ = m.callRollback(ctx, run) // without an answer the database ends it with its connection
		return nil, notDone(errClosed)
	}
	return m.carryOut(ctx, run, h, m.concludeWithoutKey, m.rollBackWithoutKey)
}

func (m *joinedMode) callBeginWithoutKey(ctx context.Context, r *request) (tx driver.JoinedTx, err error) {
	defer recovered("BeginWithoutKey", &err)
	call, cancel := context.WithTimeout(ctx, m.cfg.lockTimeout)
	defer cancel()
	return m.transactions.BeginWithoutKey(call, r.Policy.HandlerTimeout)
}

// concludeWithoutKey is step 7.
func (m *joinedMode) concludeWithoutKey(ctx context.Context, run *joinedRun) (*Result, error) {
	x, o := run.execution, run.outcome()
	run.retry = run.retry && !run.Policy.CallsOtherSystems
	success := succeeded(run.Transport, run.response.Status)
	if o != outcomeCompleted || !success && !x.keepWrites.Load() {
		return m.rollBackWithoutKey(ctx, run, run.err)
	}
	if !x.taken.Load() && success {
		// Its effects are elsewhere, and it has told of them. A refusal would make the client repeat them.
		m.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventMisused, Err: ErrNotTaken})
		return m.rollBackWithoutKey(ctx, run, run.err)
	}
	err := m.callCommit(ctx, run)
	switch {
	case err == nil:
		return run.live(), nil
	case errors.Is(err, driver.ErrEscaped): // before the others, because it may be joined with one of them
		m.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventMisused, Err: err})
	case errors.Is(err, driver.ErrSwallowed):
		m.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventMisused, Err: err})
		return nil, run.undone(err)
	case errors.Is(err, driver.ErrConflict), errors.Is(err, driver.ErrRolledBack):
		return nil, run.undone(err)
	default:
		m.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventSettleAbandoned, Err: err})
	}
	return nil, unknownWithoutKey(err)
}

// rollBackWithoutKey undoes what the handler has written, and answers with its answer.
func (m *joinedMode) rollBackWithoutKey(ctx context.Context, run *joinedRun, cause error) (*Result, error) {
	if err := m.callRollback(ctx, run); errors.Is(err, driver.ErrEscaped) {
		m.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventMisused, Err: err})
		return nil, unknownWithoutKey(errors.Join(err, cause))
	}
	if conflict := run.conflict(); run.retry && conflict != nil {
		return nil, run.undone(fmt.Errorf("%w: %w", driver.ErrConflict, conflict))
	}
	if cause != nil { // the answer is not the handler's
		return nil, run.undone(cause)
	}
	return run.live(), nil
}

// undone refuses a request without a key whose handler has run, and whose transaction was rolled back. That does not undo its
// calls of other systems.
func (run *joinedRun) undone(err error) *Refusal {
	if run.Policy.CallsOtherSystems {
		return unknownWithoutKey(err)
	}
	return notDone(err)
}

// notDone refuses a request without a key of which nothing remains.
func notDone(err error) *Refusal {
	r := refuse(CodeUnavailable, err)
	r.Advice = adviceNotDone
	return r
}

// unknownWithoutKey refuses a request without a key that may have had an effect. No pause goes with it, because
// the client must not send it again unseen.
func unknownWithoutKey(err error) *Refusal {
	r := refuse(CodeOutcomeUnknown, err)
	r.Advice, r.MayHaveHappened = adviceUnknown, true
	return r
}

// endWithoutKey ends the step of a request without a key.
func (s *step) endWithoutKey(route string, err error) {
	end := telemetry.StepEnd{Route: route, Outcome: telemetry.OutcomeUnprotected}
	if refusal, refused := asRefused(err); refused {
		end.Outcome, end.Code, end.Err = telemetry.OutcomeRefused, string(refusal.Code), refusal.Err
		if refusal.Code == CodeOutcomeUnknown {
			end.Outcome = telemetry.OutcomeUnknown
		}
	}
	s.report(end)
}

// ReportUnprotected is for adapters, on a route whose key is optional. It reports a request without a key that goes to its
// handler as without the middleware. [Engine.DoWithoutKey] reports its requests by itself.
func (e *Engine) ReportUnprotected(ctx context.Context, route string) {
	ctx, step := e.startRequest(ctx, route)
	defer step.report(telemetry.StepEnd{Route: route, Outcome: telemetry.OutcomeUnprotected})
	e.withoutKey(ctx, route)
}

// withoutKey counts a request without a key, and reports it.
func (c *core) withoutKey(ctx context.Context, route string) {
	c.keyless.add(route)
	c.report(ctx, telemetry.Event{Type: telemetry.EventUnprotected, Route: route})
}

// WithoutKey counts the requests that came without a key since the engine was made, by route, on routes whose key is optional. The route with
// the most is first.
func (e *Engine) WithoutKey() []telemetry.WithoutKey { return e.keyless.all() }

// maxRoutesWithoutKey bounds the routes of [keyless]. There are few, unless a gRPC server takes methods of any name.
const maxRoutesWithoutKey = 1000

// keyless counts requests without a key.
type keyless struct {
	mu      sync.Mutex
	byRoute map[string]*telemetry.WithoutKey
}

func (k *keyless) add(route string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byRoute == nil {
		k.byRoute = make(map[string]*telemetry.WithoutKey)
	}
	n := k.byRoute[route]
	if n == nil && len(k.byRoute) >= maxRoutesWithoutKey {
		route = "other"
		n = k.byRoute[route]
	}
	if n == nil {
		n = &telemetry.WithoutKey{Route: route}
		k.byRoute[route] = n
	}
	n.Count++
	n.Last = time.Now()
}

func (k *keyless) all() (all []telemetry.WithoutKey) {
	k.mu.Lock()
	for _, n := range k.byRoute {
		all = append(all, *n)
	}
	k.mu.Unlock()
	slices.SortFunc(all, func(a, b telemetry.WithoutKey) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Route, b.Route))
	})
	return all
}
