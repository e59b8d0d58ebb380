package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// This file is the protocol of an engine from [NewJoined], in its order. The record is a row in the database of the
// application, and it commits in the same transaction as what the handler writes. A crash at
// any moment leaves both or neither, so the outcome is never in doubt because of it.
//
//	1  admit          refuse what needs no database       (engine.go, as in every mode)
//	2  waitForFirst   wait for a request in this process
//	3  look           read the record, replay it. If an attempt may start,
//	4  bind           commit the fingerprint of the key, if the route calls other systems, and
//	5  begin          open the transaction; its first statement takes the key
//	6  execute        run the handler, with the transaction in its context
//	7  conclude
//	     success                        commit: the record's update is the last statement
//	     refusal to keep, such as 404   rollBackAndRecord: roll back, store the answer alone
//	     the same after KeepWrites      commit
//	     anything else                  rollBack: the key is free or in doubt as before, and a retry runs
//	     COMMIT without an answer       probe: look what became of it
//	     transaction ended by handler,  escaped: the outcome is unknown (joined_misuse.go)
//	     or success without it
//	8  answer
//
// Without step 4 one call of the store looks and begins. A COMMIT without an answer may have been executed, and so
// may a rollback; a BEGIN without one is undone by the database, with its connection.

// NewJoined returns an engine whose records commit together with what the handlers write. A
// handler gets its transaction from the store, for example from sqlstore.Tx. What it writes
// there happens exactly once per key. What it writes or sends in any other way may happen more
// than once.
//
// The engine has no lock and no fence. The transaction takes the place of both. Policies,
// refusals and adapters are those of [New], with three differences. Policy.FailOpen has no
// effect, because there is no transaction without the database. A success without the
// transaction is recorded as unknown, and the event [telemetry.EventMisused] tells of it. [DownstreamKey] needs Policy.CallsOtherSystems.
//
// A handler that rejects a request by 400, 415 or 422, or by INVALID_ARGUMENT in gRPC, before it has taken its transaction or
// passed the gate leaves the key free. Nothing is stored, and the corrected request runs with the key. A route with
// CallsOtherSystems has bound its key by then.
func NewJoined(store driver.JoinedStore, opts ...Option) (*Engine, error) {
	if store == nil {
		return nil, errors.New("idem: NewJoined needs a store")
	}
	c, err := newCore(store, opts)
	if err != nil {
		return nil, err
	}
	if c.cfg.singleInstance {
		return nil, errors.New("idem: WithSingleInstance is for New: an engine from NewJoined has no lock that others could share")
	}
	if c.cfg.lockSession != nil {
		return nil, errors.New("idem: WithLockSession is for New: an engine from NewJoined has no lock")
	}
	return newEngine(c, &joinedMode{c, store}), nil
}

// MustNewJoined is [NewJoined] for known-good wiring. Like [regexp.MustCompile] it panics where
// NewJoined returns an error.
func MustNewJoined(store driver.JoinedStore, opts ...Option) *Engine {
	return must(NewJoined(store, opts...))
}

// joinedMode is the mode of an engine from [NewJoined].
type joinedMode struct {
	*core
	transactions driver.JoinedStore
}

var (
	// ErrNotJoined says that an execution has no joined transaction. Its engine comes from New.
	ErrNotJoined = errors.New("idem: the execution has no joined transaction: the engine comes from New, not from NewJoined")
	// ErrNotTaken says that a handler answered with success and had not taken its transaction.
	// What it has written elsewhere is not protected, so the outcome is unknown and no retry runs.
	ErrNotTaken = errors.New("idem: the handler answered with success and never took its joined transaction: let it write through sqlstore.Tx(ctx), or pgxstore.Tx(ctx), and not through the database itself")
	// ErrUndeclared says that a route calls other systems and that its policy does not say so.
	ErrUndeclared = errors.New("idem: the route calls another system: set CallsOtherSystems in its policy")
)

// look has the steps 3 and 5. It only reads if the request may not begin yet, or if step 4 comes first. A record without a transaction is
// what answers the request, in engine.go.
func (m *joinedMode) look(ctx context.Context, r *request) (looked, error) {
	if r.onlyReads || r.Policy.CallsOtherSystems || m.work.closing.Err() != nil || m.limit.full(r) {
		return m.core.look(ctx, r)
	}
	if !m.startLook(r) {
		return looked{}, errAgain
	}
	// From here on the request goes to its end even if the caller leaves.
	detached := context.WithoutCancel(ctx)
	var l looked
	err := m.inStep(detached, telemetry.StepBegin, r, 0, func(ctx context.Context) error {
		began, err := m.callBegin(ctx, r, m.beginning(r))
		if err != nil {
			return storeRefusal(err)
		}
		l = looked{record: began.Record, locked: began.Held}
		if began.Tx != nil {
			l.begun, l.tx = m.begun(ctx, r, &began), began.Tx
		}
		return nil
	})
	switch {
	case err != nil: // the record may answer the request all the same
		rec, cannot := m.read(detached, r)
		if cannot != nil {
			return looked{}, cannot
		}
		if res, refused := r.judge(&rec); res != nil || refused != nil {
			return looked{record: rec}, nil
		}
		return looked{}, err
	case l.tx == nil:
		return l, m.hasRead(ctx, r, &l.record, nil)
	}
	if err := m.limit.enter(r); err != nil {
		run := &joinedRun{run: newRun(r, *l.begun), tx: l.tx}
		defer run.release(detached)
		_ = m.callRollback(detached, run) // without an answer the database ends it with its connection
		m.ended(detached, run.run, telemetry.EventReleased, run.repair.Replaced.State, err)
		return looked{}, err
	}
	return l, nil
}

// attempt has the steps 4 to 8, or those from 6 on if the attempt has begun.
func (m *joinedMode) attempt(ctx context.Context, r *request, l looked, h Handler) (*Result, error) {
	// From here on the request goes to its end even if the caller leaves.
	detached := context.WithoutCancel(ctx)
	var run *joinedRun
	var res *Result
	var err error
	switch {
	case l.locked:
		return m.elsewhere(ctx, r, l.record, m.wait)
	case l.tx != nil:
		run = &joinedRun{run: newRun(r, *l.begun), tx: l.tx}
	default:
		// Step 4: bind the key to the request, if other systems will see its attempts.
		if err := m.bind(detached, r); err != nil {
			return nil, err
		}
		// Step 5: open the transaction and take the key in it.
		err = m.inStep(detached, telemetry.StepBegin, r, 0, func(ctx context.Context) (err error) {
			run, res, err = m.begin(ctx, r)
			return err
		})
		if errors.Is(err, driver.ErrLocked) {
			return m.elsewhere(ctx, r, l.record, m.wait)
		}
		if run == nil {
			m.endFirst(r, res)
			return res, err
		}
	}
	if !m.work.startHandler() {
		defer run.release(detached)
		_ = m.callRollback(detached, run) // without an answer the database ends it with its connection
		m.ended(detached, run.run, telemetry.EventReleased, run.repair.Replaced.State, errClosed)
		return nil, refuse(CodeUnavailable, errClosed)
	}
	return m.carryOut(detached, run, h, m.conclude, m.rollBack)
}

// carryOut has the steps 6 to 8 of a handler that is counted. With and without a key the transaction ends in two ways.
func (m *joinedMode) carryOut(ctx context.Context, run *joinedRun, h Handler, conclude func(context.Context, *joinedRun) (*Result, error),
	rollBack func(context.Context, *joinedRun, error) (*Result, error)) (res *Result, err error) {
	r := run.request
	defer m.work.endHandler()
	defer run.release(ctx) // before endHandler, because Close must not return while the key is held
	// Step 6: run the handler.
	m.execute(ctx, run.run, transaction{run.tx}, h, func() { _, _ = rollBack(ctx, run, errPanic) })
	// Steps 7 and 8: end the transaction, answer. After a conflict the whole handler may run
	// again, because nothing of the transaction remains.
	run.retry = r.retries > 0
	_ = m.inStep(ctx, telemetry.StepSettle, r, 0, func(ctx context.Context) error {
		res, err = conclude(ctx, run)
		if _, refused := asRefused(err); !refused { // an error of the handler is none of this step
			return nil
		}
		return err
	})
	if !run.retry || !errors.Is(err, driver.ErrConflict) {
		return res, err
	}
	r.retries--
	m.observe(ctx, r, telemetry.Event{Type: telemetry.EventConflict, Attempt: run.settlement.Attempt, Err: err})
	return nil, errAgain
}

// joinedRun is a run in a transaction.
type joinedRun struct {
	*run
	tx    driver.JoinedTx // nil as soon as escapedInBackground has it
	retry bool            // the handler may run again after a conflict
}

// bind is step 4. A rolled-back attempt leaves no record, but the other systems have seen it.
// So its fingerprint is committed first, and another request under the same key is refused.
func (m *joinedMode) bind(ctx context.Context, r *request) error {
	if !r.Policy.CallsOtherSystems {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, m.cfg.storeTimeout)
	defer cancel()
	bound, err := m.callBind(call, r)
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

// begin is step 5. It opens a transaction for an attempt, or it returns a stored outcome or a
// refusal. The error is ErrLocked if another transaction holds the key.
func (m *joinedMode) begin(ctx context.Context, r *request) (*joinedRun, *Result, error) {
	req := m.beginning(r)
	req.Looked = true
	// A second round follows after a committed attempt in doubt, as under a lock.
	for range beginRounds {
		began, err := m.callBegin(ctx, r, req)
		switch {
		case err != nil:
			if unreadable(err) {
				m.observe(ctx, r, telemetry.Event{Type: telemetry.EventUnreadable, Err: err})
			}
			return nil, nil, storeRefusal(err)
		case began.Held:
			return nil, nil, driver.ErrLocked
		case began.Tx != nil:
			return &joinedRun{run: newRun(r, *m.begun(ctx, r, &began)), tx: began.Tx}, nil, nil
		}
		// A committed pending record is in doubt. Its handler has ended the transaction by
		// itself, so found settles it as unknown or asks the resolver.
		f, err := m.found(ctx, r, doubtful{m}, began.Record)
		if !f.again {
			return nil, f.result, err
		}
		req.RunAgainFrom, req.Fingerprint = r.startsFrom(&f.record)
	}
	return nil, nil, refuse(CodeInProgress, errors.New("idem: the record kept changing"))
}

// beginning is the attempt that a request would start.
func (m *joinedMode) beginning(r *request) driver.JoinedRequest {
	return driver.JoinedRequest{Kind: r.Policy.kind(), Route: r.Policy.Name, Nonce: driver.NewNonce(), Fingerprint: r.fingerprint,
		ResultTTL: r.Policy.ResultTTL, KeyTTL: r.Policy.KeyTTL, HandlerTimeout: r.Policy.HandlerTimeout}
}

// begun tells of an attempt that has begun.
func (m *joinedMode) begun(ctx context.Context, r *request, began *driver.JoinedBegin) *begun {
	if r.first != nil {
		r.first.begun.Store(true)
	}
	m.observe(ctx, r, telemetry.Event{Type: telemetry.EventBegun, Attempt: began.Record.Attempt, State: driver.StatePending})
	b := newBegun(began.Record, began.Replaced)
	return &b
}

func (m *joinedMode) callBind(ctx context.Context, r *request) (bound driver.Fingerprint, err error) {
	defer recovered("Bind", &err)
	return m.transactions.Bind(ctx, r.id, r.fingerprint, r.Policy.KeyTTL)
}

func (m *joinedMode) callBegin(ctx context.Context, r *request, req driver.JoinedRequest) (begin driver.JoinedBegin, err error) {
	defer recovered("BeginJoined", &err)
	call, cancel := context.WithTimeout(ctx, m.cfg.lockTimeout)
	defer cancel()
	return m.transactions.BeginJoined(call, r.id, req)
}

// conclude is step 7. It decides how the transaction ends.
func (m *joinedMode) conclude(ctx context.Context, run *joinedRun) (*Result, error) {
	switch {
	case run.outcome() != outcomeCompleted:
		return m.rollBack(ctx, run, run.err)
	case succeeded(run.Transport, run.response.Status), run.execution.keepWrites.Load():
		return m.commit(ctx, run)
	}
	return m.rollBackAndRecord(ctx, run)
}

// commit stores the outcome and commits it with the writes of the handler.
func (m *joinedMode) commit(ctx context.Context, run *joinedRun) (*Result, error) {
	if !run.execution.taken.Load() && succeeded(run.Transport, run.response.Status) {
		// The key is free from here until the outcome is recorded. A duplicate on another instance
		// may start then, and its outcome is unknown in the same way.
		_ = m.callRollback(ctx, run)
		return m.escaped(ctx, run, ErrNotTaken)
	}
	run.decide(outcomeCompleted, (*driver.Response)(&run.response))
	err := m.callCommit(ctx, run)
	switch {
	case err == nil:
		return m.committed(ctx, run)
	case errors.Is(err, driver.ErrEscaped):
		return m.escaped(ctx, run, err)
	case errors.Is(err, driver.ErrSwallowed):
		return m.misused(ctx, run, err)
	case errors.Is(err, driver.ErrConflict), errors.Is(err, driver.ErrRolledBack):
		m.ended(ctx, run.run, telemetry.EventReleased, run.repair.Replaced.State, err)
		return nil, refuse(CodeUnavailable, err)
	}
	return m.probe(ctx, run, err)
}

// callCommit commits once. If the store cannot hold the response, callCommit commits without
// it, because the outcome stands.
func (m *joinedMode) callCommit(ctx context.Context, run *joinedRun) (err error) {
	defer recovered("Commit", &err)
	call, cancel := context.WithTimeout(ctx, m.cfg.settleTimeout)
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
func (m *joinedMode) committed(ctx context.Context, run *joinedRun) (*Result, error) {
	m.ended(ctx, run.run, telemetry.EventCompleted, run.settlement.State, nil)
	m.endFirst(run.request, run.repeatable(run.settlement.Response))
	return run.live(), nil
}

// probe looks what became of a COMMIT without an answer. The database is the truth: what the
// primary has now is the outcome, and the client gets that.
func (m *joinedMode) probe(ctx context.Context, run *joinedRun, cause error) (*Result, error) {
	call, cancel := context.WithTimeout(ctx, m.cfg.settleTimeout)
	defer cancel()
	rec, err := m.callProbe(call, run.id)
	if err != nil { // it is not known what was decided
		m.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventSettleAbandoned, Attempt: run.settlement.Attempt, State: run.settlement.State, Err: errors.Join(cause, err)})
		return nil, run.refuse(CodeUnavailable, errors.Join(cause, err))
	}
	switch {
	case !used(rec.State):
		m.ended(ctx, run.run, telemetry.EventReleased, rec.State, cause)
		return nil, refuse(CodeUnavailable, fmt.Errorf("%w: %w", driver.ErrRolledBack, cause))
	case rec.Attempt == run.settlement.Attempt && rec.State == driver.StateCompleted:
		return m.committed(ctx, run)
	case rec.Attempt == run.settlement.Attempt && rec.State == driver.StatePending:
		return m.escaped(ctx, run, fmt.Errorf("%w: %w", driver.ErrEscaped, cause))
	case rec.State.Open():
		return nil, run.refuse(CodeUnavailable, fmt.Errorf("idem: the attempt in the record is %v: %w", rec.State, cause))
	}
	m.ended(ctx, run.run, telemetry.EventSuperseded, rec.State, cause) // another attempt got there first
	res, err := run.judge(&rec)
	m.endFirst(run.request, res)
	return res, err
}

// rollBack undoes what the handler has written. The key is free, and a retry runs. An attempt
// that started from one in doubt leaves that one as it was.
func (m *joinedMode) rollBack(ctx context.Context, run *joinedRun, cause error) (*Result, error) {
	if err := m.callRollback(ctx, run); errors.Is(err, driver.ErrEscaped) {
		return m.escaped(ctx, run, errors.Join(err, cause))
	}
	o, event, free := run.outcome(), telemetry.EventReleased, true
	if run.startedFromDoubt() {
		o, event, free = outcomeInDoubt, telemetry.EventUnknown, false
	}
	m.ended(ctx, run.run, event, run.repair.Replaced.State, cause)
	if conflict := run.conflict(); run.retry && conflict != nil {
		return nil, refuse(CodeUnavailable, fmt.Errorf("%w: %w", driver.ErrConflict, conflict))
	}
	return run.tell(o, free)
}

// conflict is the conflict that the handler has returned or reported, or nil.
func (run *joinedRun) conflict() error {
	if run.err != nil && run.tx.Conflict(run.err) {
		return run.err
	}
	if reported := run.execution.conflict.Load(); reported != nil {
		return *reported
	}
	return nil
}

// rollBackAndRecord undoes what the handler has written, and then stores its answer alone, such
// as a refusal for lack of funds. In between the key is free, and another attempt may run. If it got there first, its record is the answer.
func (m *joinedMode) rollBackAndRecord(ctx context.Context, run *joinedRun) (*Result, error) {
	if err := m.callRollback(ctx, run); errors.Is(err, driver.ErrEscaped) {
		return m.escaped(ctx, run, err)
	}
	run.decide(outcomeCompleted, (*driver.Response)(&run.response))
	settled, err := m.settleAlone(ctx, run)
	switch {
	case err != nil: // the client asks again, and gets what was stored or runs again
		m.ended(ctx, run.run, telemetry.EventSettleAbandoned, settled.Record.State, err)
		return nil, storeRefusal(err)
	case settled.Settled:
		return m.committed(ctx, run)
	}
	m.ended(ctx, run.run, telemetry.EventSuperseded, settled.Record.State, nil)
	res, err := run.judge(&settled.Record)
	if res == nil && err == nil {
		err = refuse(CodeInProgress, errors.New("idem: another attempt got there first"))
	}
	m.endFirst(run.request, res)
	return res, err
}

// settleAlone stores the settlement of a run in a transaction of its own, and retries for the
// settle time-out. The transaction of the attempt is over, so the store writes the record anew.
func (m *joinedMode) settleAlone(ctx context.Context, run *joinedRun) (driver.SettleResult, error) {
	giveUp := time.Now().Add(m.cfg.settleTimeout)
	pause := backoff{first: 20 * time.Millisecond, most: time.Second}
	for {
		res, err := m.callSettle(ctx, run.request, &run.settlement, time.Until(giveUp), m.store.Settle)
		if err == nil || unreadable(err) {
			return res, err
		}
		left := time.Until(giveUp)
		if left <= 0 || !sleep(m.work.ctx, min(pause.next(), left)) {
			return res, err
		}
	}
}

// release frees what the transaction still holds, unless the work in the background does.
func (run *joinedRun) release(ctx context.Context) {
	if run.tx != nil {
		run.tx.Release(ctx)
	}
}

func (m *joinedMode) callProbe(ctx context.Context, id driver.KeyID) (rec driver.Record, err error) {
	defer recovered("Probe", &err)
	return m.transactions.Probe(ctx, id)
}

func (m *joinedMode) callRollback(ctx context.Context, run *joinedRun) (err error) {
	defer recovered("Rollback", &err)
	call, cancel := context.WithTimeout(ctx, m.cfg.storeTimeout)
	defer cancel()
	return run.tx.Rollback(call)
}
