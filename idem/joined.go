package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// This file is the protocol of joined mode. The record is a row in the database of the
// application, and it commits in the same transaction as what the handler writes. A crash at
// any moment leaves both or neither, so the outcome is never in doubt because of it.
//
//	1  admit          refuse what needs no database       (engine.go, as in every mode)
//	2  waitForFirst   wait for a request in this process
//	3  read           look for the record, replay it
//	4  bind           commit the fingerprint of the key, if the route calls other systems
//	5  beginJoined    open the transaction; its first statement takes the key
//	6  executeJoined  run the handler, with the transaction in its context
//	7  concludeJoined
//	     success                        commit: the record's update is the last statement
//	     refusal to keep, such as 404   rollBackAndRecord: roll back, store the answer alone
//	     the same after KeepWrites      commit
//	     anything else                  rollBack: the key is free, and a retry runs
//	     COMMIT without an answer       probe: look what became of it
//	     transaction ended by handler,  escaped: the outcome is unknown (joined_misuse.go)
//	     or success without it
//	8  answer

// NewJoined returns an engine whose records commit together with what the handlers write. A
// handler gets its transaction from the store, for example from sqlstore.Tx. What it writes
// there happens exactly once per key. What it writes or sends in any other way may happen more
// than once.
//
// The engine has no lock and no fence. The transaction takes the place of both. Policies,
// refusals and adapters are those of [New], with three differences. Policy.FailOpen has no
// effect, because there is no transaction without the database. A success without the
// transaction is recorded as unknown, and the event [telemetry.EventMisused] tells of it. [DownstreamKey] needs Policy.CallsOtherSystems.
func NewJoined(store driver.JoinedStore, opts ...Option) (*Engine, error) {
	if store == nil {
		return nil, errors.New("idem: NewJoined needs a store")
	}
	e, err := New(joinedLocker{store}, store, opts...)
	if err == nil {
		e.joined = store
	}
	return e, err
}

// MayRunAgain is for adapters. It reports whether [Engine.Do] may run the handler of op more than
// once, because of [WithConflictRetries]. Every run has to get the same input, whatever an earlier
// run has done to its own.
func (e *Engine) MayRunAgain(op *Operation) bool {
	return e.joined != nil && e.cfg.conflictRetries > 0 && !op.RunOnce
}

// Joined is for adapters. It reports whether the engine comes from [NewJoined]. Then nothing of a
// success may reach the client before [Engine.Do] has returned, because COMMIT can still undo it.
func (e *Engine) Joined() bool { return e.joined != nil }

var (
	// ErrNotJoined says that an execution has no joined transaction. Its engine comes from New.
	ErrNotJoined = errors.New("idem: the execution has no joined transaction: the engine comes from New, not from NewJoined")
	// ErrNotTaken says that a handler answered with success and had not taken its transaction.
	// What it has written elsewhere is not protected, so the outcome is unknown and no retry runs.
	ErrNotTaken = errors.New("idem: the handler answered with success and never took its joined transaction")
	// ErrUndeclared says that a route calls other systems and that its policy does not say so.
	ErrUndeclared = errors.New("idem: the route calls another system: set CallsOtherSystems in its policy")
)

// inTransaction has the steps 4 to 8 of joined mode.
func (e *Engine) inTransaction(ctx context.Context, r *request, h Handler) (*Result, error) {
	// From here on the request goes to its end even if the caller leaves.
	detached := context.WithoutCancel(ctx)
	// Step 4: bind the key to the request, if other systems will see its attempts.
	if err := e.bind(detached, r); err != nil {
		return nil, err
	}
	// Step 5: open the transaction and take the key in it.
	var tx driver.JoinedTx
	var res *Result
	err := e.inStep(detached, telemetry.StepBegin, r, 0, func(ctx context.Context) (err error) {
		tx, res, err = e.beginJoined(ctx, r)
		return err
	})
	if errors.Is(err, driver.ErrLocked) {
		return e.locked(ctx, r)
	}
	if tx == nil {
		e.endFirst(r, res)
		return res, err
	}
	if !e.work.startHandler() {
		e.letGo(detached, tx)
		return nil, refuse(CodeUnavailable, errClosed)
	}
	defer e.work.endHandler()
	// Step 6: run the handler.
	run := e.executeJoined(detached, r, tx, h)
	// Steps 7 and 8: end the transaction, answer. After a conflict the whole handler may run
	// again, because nothing of the transaction remains.
	run.retry = r.retries > 0
	_ = e.inStep(detached, telemetry.StepSettle, r, 0, func(ctx context.Context) error {
		res, err = e.concludeJoined(ctx, run)
		if _, refused := asRefused(err); !refused { // an error of the handler is none of this step
			return nil
		}
		return err
	})
	if !run.retry || !errors.Is(err, driver.ErrConflict) {
		return res, err
	}
	r.retries--
	e.observe(ctx, r, telemetry.Event{Type: telemetry.EventConflict, Attempt: run.settlement.Attempt, Err: err})
	return nil, errAgain
}

// bind is step 4. A rolled-back attempt leaves no record, but the other systems have seen it.
// So its fingerprint is committed first, and another request under the same key is refused.
func (e *Engine) bind(ctx context.Context, r *request) error {
	if !r.Policy.CallsOtherSystems {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, e.cfg.storeTimeout)
	defer cancel()
	bound, err := e.callBind(call, r)
	if err != nil {
		return storeRefusal(err)
	}
	same, err := r.matches(bound)
	switch {
	case err != nil:
		return refuse(CodeUnavailable, err)
	case !same:
		return refuse(CodeKeyReused, errors.New("idem: fingerprint differs from that of an attempt that was rolled back"))
	}
	return nil
}

// beginJoined is step 5. It opens a transaction for an attempt, which then is r.record.Attempt,
// or it returns a stored outcome or a refusal. The error is ErrLocked if another transaction
// holds the key.
func (e *Engine) beginJoined(ctx context.Context, r *request) (tx driver.JoinedTx, res *Result, err error) {
	r.nonce = driver.NewNonce()
	req := driver.JoinedRequest{Kind: r.Policy.kind(), Route: r.Policy.Name, Nonce: r.nonce, Fingerprint: r.fingerprint,
		ResultTTL: r.Policy.ResultTTL, KeyTTL: r.Policy.KeyTTL, HandlerTimeout: r.Policy.HandlerTimeout}
	// A second round follows after a committed attempt in doubt, as in begin.
	for range beginRounds {
		begin, err := e.callBeginJoined(ctx, r, req)
		switch {
		case err != nil:
			if unreadable(err) {
				e.observe(ctx, r, telemetry.Event{Type: telemetry.EventUnreadable, Err: err})
			}
			return nil, nil, storeRefusal(err)
		case begin.Held:
			return nil, nil, driver.ErrLocked
		case begin.Tx != nil:
			if r.first != nil {
				r.first.begun.Store(true)
			}
			e.observe(ctx, r, telemetry.Event{Type: telemetry.EventBegun, Attempt: r.record.Attempt, State: driver.StatePending})
			return begin.Tx, nil, nil
		}
		// A committed pending record is in doubt. Its handler has ended the transaction by
		// itself, so found settles it as unknown or asks the resolver.
		res, again, err := e.found(ctx, r, joinedLease{})
		if !again {
			return nil, res, err
		}
		req.RunAgainFrom, req.Fingerprint = nil, r.fingerprint
		if r.record.State.Open() && r.Policy.RunsAgain(r.record.Attempt) {
			from := r.record.Attempt
			req.RunAgainFrom, req.Fingerprint = &from, r.record.Fingerprint
		}
	}
	return nil, nil, refuse(CodeInProgress, errors.New("idem: the record kept changing"))
}

func (e *Engine) callBind(ctx context.Context, r *request) (bound driver.Fingerprint, err error) {
	defer recovered("Bind", &err)
	return e.joined.Bind(ctx, r.id, r.fingerprint, r.Policy.KeyTTL)
}

func (e *Engine) callBeginJoined(ctx context.Context, r *request, req driver.JoinedRequest) (begin driver.JoinedBegin, err error) {
	defer recovered("BeginJoined", &err)
	call, cancel := context.WithTimeout(ctx, e.cfg.lockTimeout)
	defer cancel()
	begin, err = e.joined.BeginJoined(call, r.id, req)
	if err == nil && !begin.Held {
		r.record = begin.Record
		r.repair = repairOf(&r.record)
		r.repair.Replaced = begin.Replaced
	}
	return begin, err
}

// executeJoined is step 6: it runs the handler with the transaction in its context.
func (e *Engine) executeJoined(ctx context.Context, r *request, tx driver.JoinedTx, h Handler) *run {
	run := &run{request: r, tx: tx, settlement: driver.Settlement{Attempt: r.record.Attempt}, started: time.Now()}
	r.telemetry.attempt = r.record.Attempt.Number
	inner, step := e.startStep(ctx, telemetry.StepHandler, r)
	run.span = step.span()
	x := e.newExecution(inner, r, nil, r.record.Attempt, r.Policy.HandlerTimeout)
	x.joined, run.execution = tx, x
	defer x.end()
	e.handlerStarted(ctx, run)
	defer e.handlerEnded(run)

	returned := false
	defer func() {
		x.ended.Store(true)
		if !returned { // a panic or runtime.Goexit, which goes on after the rollback
			step.end(r, errPanic)
			run.err = errPanic
			_, _ = e.rollBack(ctx, run, errPanic)
			run.release(ctx)
		}
	}()
	run.response, run.err = h(x)
	returned = true
	run.cut = x.Err() != nil // before telemetry, which may take its time
	step.end(r, run.err)
	return run
}

// concludeJoined is step 7. It decides how the transaction ends.
func (e *Engine) concludeJoined(ctx context.Context, run *run) (*Result, error) {
	defer run.release(ctx)
	switch {
	case run.outcome() != outcomeCompleted:
		return e.rollBack(ctx, run, run.err)
	case succeeded(run.Transport, run.response.Status), run.execution.keepWrites.Load():
		return e.commit(ctx, run)
	}
	return e.rollBackAndRecord(ctx, run)
}

// commit stores the outcome and commits it with the writes of the handler.
func (e *Engine) commit(ctx context.Context, run *run) (*Result, error) {
	if !run.execution.taken.Load() && succeeded(run.Transport, run.response.Status) {
		// The key is free from here until the outcome is recorded. A duplicate on another instance
		// may start then, and its outcome is unknown in the same way.
		_ = e.callRollback(ctx, run)
		return e.escaped(ctx, run, ErrNotTaken)
	}
	run.decide(outcomeCompleted, (*driver.Response)(&run.response))
	err := e.callCommit(ctx, run)
	switch {
	case err == nil:
		return e.committed(ctx, run)
	case errors.Is(err, driver.ErrEscaped):
		return e.escaped(ctx, run, err)
	case errors.Is(err, driver.ErrSwallowed):
		return e.misused(ctx, run, err)
	case errors.Is(err, driver.ErrConflict), errors.Is(err, driver.ErrRolledBack):
		e.ended(ctx, run, telemetry.EventReleased, err)
		return nil, refuse(CodeUnavailable, err)
	}
	return e.probe(ctx, run, err)
}

// callCommit commits once. If the store cannot hold the response, callCommit commits without
// it, because the outcome stands.
func (e *Engine) callCommit(ctx context.Context, run *run) (err error) {
	defer recovered("Commit", &err)
	call, cancel := context.WithTimeout(ctx, e.cfg.settleTimeout)
	defer cancel()
	s := &run.settlement
	err = run.tx.Commit(call, *s)
	if errors.Is(err, driver.ErrResponseInvalid) && !s.Response.Omitted {
		s.Response = &driver.Response{Status: s.Response.Status, Omitted: true, Span: s.Response.Span}
		err = run.tx.Commit(call, *s)
	}
	if errors.Is(err, driver.ErrResponseInvalid) { // the transaction is still open
		return fmt.Errorf("%w: %w: %w", driver.ErrRolledBack, errMisbehaves, errors.Join(err, run.tx.Rollback(call)))
	}
	return err
}

// committed is step 8 for an outcome that is stored.
func (e *Engine) committed(ctx context.Context, run *run) (*Result, error) {
	run.record.State = run.settlement.State
	e.ended(ctx, run, telemetry.EventCompleted, nil)
	e.endFirst(run.request, run.repeatable(run.settlement.Response))
	return run.live(), nil
}

// probe looks what became of a COMMIT without an answer. The database is the truth: what the
// primary has now is the outcome, and the client gets that.
func (e *Engine) probe(ctx context.Context, run *run, cause error) (*Result, error) {
	call, cancel := context.WithTimeout(ctx, e.cfg.settleTimeout)
	defer cancel()
	rec, err := e.callProbe(call, run.id)
	if err != nil { // nothing is decided
		e.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventSettleAbandoned, Attempt: run.settlement.Attempt, State: run.settlement.State, Err: errors.Join(cause, err)})
		return nil, run.refuse(CodeUnavailable, errors.Join(cause, err))
	}
	run.record = rec
	switch {
	case !used(rec.State):
		e.ended(ctx, run, telemetry.EventReleased, cause)
		return nil, refuse(CodeUnavailable, fmt.Errorf("%w: %w", driver.ErrRolledBack, cause))
	case rec.Attempt == run.settlement.Attempt && rec.State == driver.StateCompleted:
		return e.committed(ctx, run)
	case rec.Attempt == run.settlement.Attempt && rec.State == driver.StatePending:
		return e.escaped(ctx, run, fmt.Errorf("%w: %w", driver.ErrEscaped, cause))
	case rec.State.Open():
		return nil, run.refuse(CodeUnavailable, fmt.Errorf("idem: another attempt is %v: %w", rec.State, cause))
	}
	e.ended(ctx, run, telemetry.EventSuperseded, cause) // another attempt got there first
	res, err := e.judge(run.request, &run.record)
	e.endFirst(run.request, res)
	return res, err
}

// rollBack undoes what the handler has written. The key is free, and a retry runs. An attempt
// that started from one in doubt leaves that one as it was.
func (e *Engine) rollBack(ctx context.Context, run *run, cause error) (*Result, error) {
	if err := e.callRollback(ctx, run); errors.Is(err, driver.ErrEscaped) {
		return e.escaped(ctx, run, errors.Join(err, cause))
	}
	o, event, free := run.outcome(), telemetry.EventReleased, true
	if run.startedFromDoubt() {
		o, event, free = outcomeInDoubt, telemetry.EventUnknown, false
	}
	run.record.State = run.repair.Replaced.State
	e.ended(ctx, run, event, cause)
	if conflict := run.conflict(); run.retry && conflict != nil {
		return nil, refuse(CodeUnavailable, fmt.Errorf("%w: %w", driver.ErrConflict, conflict))
	}
	return run.tell(o, free)
}

// conflict is the conflict that the handler has returned or reported, or nil.
func (run *run) conflict() error {
	if run.err != nil && run.tx.Conflict(run.err) {
		return run.err
	}
	if reported := run.execution.conflict.Load(); reported != nil {
		return *reported
	}
	return nil
}

// rollBackAndRecord undoes what the handler has written, and then stores its answer alone, such
// as a refusal for lack of funds. If another attempt got there first, its record is the answer.
func (e *Engine) rollBackAndRecord(ctx context.Context, run *run) (*Result, error) {
	if err := e.callRollback(ctx, run); errors.Is(err, driver.ErrEscaped) {
		return e.escaped(ctx, run, err)
	}
	run.decide(outcomeCompleted, (*driver.Response)(&run.response))
	settled, err := e.settleAlone(ctx, run)
	switch {
	case err != nil: // the client asks again, and gets what was stored or runs again
		e.ended(ctx, run, telemetry.EventSettleAbandoned, err)
		return nil, storeRefusal(err)
	case settled:
		return e.committed(ctx, run)
	}
	e.ended(ctx, run, telemetry.EventSuperseded, nil)
	res, err := e.judge(run.request, &run.record)
	if res == nil && err == nil {
		err = refuse(CodeInProgress, errors.New("idem: another attempt got there first"))
	}
	e.endFirst(run.request, res)
	return res, err
}

// settleAlone stores the settlement of a run in a transaction of its own, and retries for the
// settle time-out. The transaction of the attempt is over, so the store writes the record anew.
func (e *Engine) settleAlone(ctx context.Context, run *run) (settled bool, err error) {
	giveUp := time.Now().Add(e.cfg.settleTimeout)
	pause := backoff{first: 20 * time.Millisecond, most: time.Second}
	for {
		res, err := e.callSettle(ctx, run.request, &run.settlement, time.Until(giveUp))
		if err == nil || unreadable(err) {
			return res.Settled, err
		}
		left := time.Until(giveUp)
		if left <= 0 || !sleep(e.work.ctx, min(pause.next(), left)) {
			return false, err
		}
	}
}

// release frees what the transaction still holds, unless the work in the background does.
func (run *run) release(ctx context.Context) {
	if run.tx != nil {
		run.tx.Release(ctx)
	}
}

func (e *Engine) callProbe(ctx context.Context, id driver.KeyID) (rec driver.Record, err error) {
	defer recovered("Probe", &err)
	return e.joined.Probe(ctx, id)
}

// letGo gives up a transaction before its handler has started.
func (e *Engine) letGo(ctx context.Context, tx driver.JoinedTx) {
	run := &run{tx: tx}
	defer run.release(ctx)
	_ = e.callRollback(ctx, run) // without an answer the database ends it with its connection
}

func (e *Engine) callRollback(ctx context.Context, run *run) (err error) {
	defer recovered("Rollback", &err)
	call, cancel := context.WithTimeout(ctx, e.cfg.storeTimeout)
	defer cancel()
	return run.tx.Rollback(call)
}
