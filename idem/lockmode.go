package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// This file is the protocol of an engine from [New], in its order. A lock guards the key, and the
// store has the record.
//
//	1  admit          refuse what needs no lock and no store    (engine.go, as in every mode)
//	2  waitForFirst   wait for a request in this process
//	3  look           read the record, replay it                (core.go)
//	4  lock           take the lock of the key
//	5  begin          write the attempt into the record
//	6  execute        run the handler
//	7  settle         write the outcome into the record
//	8  answer         answer, and release the lock
//
// Between 3 and 4 the request becomes the first one of its process, and counts among the open ones of its scope (engine.go). The error
// errAgain starts it over at step 2.
//
// What follows an error is elsewhere: a Begin without an answer in abort.go, a settlement without one in
// late.go, a route that fails open in failopen.go. Lock services that leave durable markers are in
// mark.go, those that may come back with older data in history.go.

// lockMode is the mode of an engine from [New].
type lockMode struct {
	*core
	locker  driver.Locker
	intake  intake
	undoing undoing
	history history
}

func newLockMode(c *core, l driver.Locker) *lockMode {
	m := &lockMode{core: c, locker: l}
	m.history.init(l)
	return m
}

// attempt has the steps 4 to 8.
func (m *lockMode) attempt(ctx context.Context, r *request, l looked, h Handler) (*Result, error) {
	rec := l.record
	// From here on the request goes to its end even if the caller leaves.
	detached := context.WithoutCancel(ctx)
	// Step 4: take the lock, unless the store takes no writes. An attempt in doubt is looked at all the same.
	if !rec.State.Open() && !l.tries {
		if err := m.intake.refuses(r.id); err != nil {
			return m.failOpen(ctx, r, rec.State, h, refuse(CodeUnavailable, err))
		}
	}
	lease, err := m.lock(detached, r)
	if errors.Is(err, driver.ErrLocked) {
		return m.elsewhere(ctx, r, rec, m.locker.Wait)
	}
	if err != nil {
		return m.failOpen(ctx, r, rec.State, h, refuse(CodeUnavailable, err))
	}
	defer lease.letGo() // also after a panic; the next holder then finds the attempt interrupted
	if m.work.closing.Err() != nil {
		return nil, refuse(CodeUnavailable, errClosed)
	}
	// Step 5: begin the attempt under the lock.
	var b *begun
	var res *Result
	err = m.inStep(detached, telemetry.StepBegin, r, 0, func(ctx context.Context) (err error) {
		b, res, err = m.begin(ctx, r, lease)
		return err
	})
	if err != nil {
		return m.failOpen(ctx, r, rec.State, h, err)
	}
	if b == nil {
		m.endFirst(r, res)
		return res, nil
	}
	return m.carryOut(detached, r, lease, b, h)
}

// carryOut has the steps 6 to 8, for an attempt that has begun.
func (m *lockMode) carryOut(ctx context.Context, r *request, lease *held, b *begun, h Handler) (*Result, error) {
	defer m.work.endHandler() // begin has counted it
	// Step 6: run the handler.
	run := &lockRun{run: newRun(r, *b), lease: lease}
	m.execute(ctx, run.run, lease, h, func() {
		_, _ = m.finish(ctx, run, outcomeInDoubt, nil, errPanic)
	})
	// Steps 7 and 8: settle the attempt, answer, release the lock.
	o := run.outcome()
	if o == outcomeNoEffect && run.startedFromDoubt() { // the earlier attempt may have had an effect
		o = outcomeInDoubt
	}
	if run.err != nil {
		return m.finish(ctx, run, o, nil, run.err)
	}
	return m.finish(ctx, run, o, (*driver.Response)(&run.response), nil)
}

// lock is step 4.
func (m *lockMode) lock(ctx context.Context, r *request) (*held, error) {
	if m.history.locker == nil {
		return m.tryLock(ctx, r)
	}
	for range beginRounds {
		known := m.history.highest()
		lease, err := m.tryLock(ctx, r)
		if err != nil {
			return nil, err
		}
		follows, err := m.inHistory(ctx, r, lease, known)
		if follows {
			return lease, nil
		}
		lease.letGo()
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, errDomainChanges)
}

func (m *lockMode) tryLock(ctx context.Context, r *request) (*held, error) {
	lease := &held{mode: m, nonce: driver.NewNonce()}
	err := m.inStep(ctx, telemetry.StepLock, r, m.cfg.lockTimeout, func(ctx context.Context) (err error) {
		defer recovered("TryAcquire", &err)
		lease.Lease, err = m.locker.TryAcquire(ctx, driver.LockRequest{KeyID: r.id, Nonce: lease.nonce})
		return err
	})
	if err != nil {
		return nil, err
	}
	return lease, nil
}

// beginRounds bounds how often begin starts over.
const beginRounds = 4

// errMarkedLost says that the store fell back between the look at a marker and Begin.
var errMarkedLost = errors.New("idem: the token store lost the marked attempt while this one began")

// begin is step 5. It begins an attempt, or it returns a stored outcome or a refusal.
func (m *lockMode) begin(ctx context.Context, r *request, lease *held) (*begun, *Result, error) {
	rec, res, answered, err := m.heed(ctx, r, lease)
	if answered {
		return nil, res, err
	}
	req := driver.BeginRequest{Kind: r.Policy.kind(), Route: r.Policy.Name, Fence: lease.Fence(), Nonce: lease.nonce,
		Fingerprint: r.fingerprint, ResultTTL: r.Policy.ResultTTL, KeyTTL: r.Policy.KeyTTL}
	// If Begin meets an attempt in doubt, found settles it, or lets the next attempt start from it, and a second
	// round follows. More of them follow only if other processes decide at the same time.
	for range beginRounds {
		began, err := m.callBegin(ctx, r, req)
		switch {
		case unreadable(err):
			m.observe(ctx, r, telemetry.Event{Type: telemetry.EventUnreadable, Err: err})
			return nil, nil, storeRefusal(err)
		case errors.Is(err, driver.ErrStaleFence) && m.lostFence(ctx, r, lease):
			return nil, nil, errAgain // under a lock of another domain
		case errors.Is(err, driver.ErrStoreLost), errors.Is(err, driver.ErrStaleFence):
			return nil, nil, storeRefusal(err)
		case err != nil: // the store may have applied it, or may apply it later
			if markerOf(lease) != nil {
				mark(lease, &rec) // now, because after the Abort the record may not show any more what we saw
			}
			m.undo(ctx, r, lease, req, err)
			return nil, nil, storeRefusal(err)
		case began.Begun:
			b, err := m.started(ctx, r, lease, req, newBegun(began.Record, began.Replaced))
			return b, nil, err
		}
		f, err := m.found(ctx, r, lease, began.Record)
		if rec = f.record; !f.again {
			mark(lease, &rec)
			return nil, f.result, err
		}
		req.RunAgainFrom, req.Fingerprint = r.startsFrom(&rec)
	}
	return nil, nil, refuse(CodeInProgress, errors.New("idem: the record kept changing under the lock"))
}

func (m *lockMode) callBegin(ctx context.Context, r *request, req driver.BeginRequest) (res driver.BeginResult, err error) {
	defer recovered("Begin", &err)
	call, cancel := context.WithTimeout(ctx, m.cfg.storeTimeout)
	defer cancel()
	res, err = m.store.Begin(call, r.id, req)
	m.intake.note(r.id, err)
	return res, err
}

// started is the end of step 5 for an attempt that has begun. Its handler may run, or the error is a
// refusal and the attempt is undone.
func (m *lockMode) started(ctx context.Context, r *request, lease *held, req driver.BeginRequest, b begun) (*begun, error) {
	if err := lease.Err(); err != nil {
		m.undo(ctx, r, lease, req, err)
		return nil, refuse(CodeOwnershipLost, err)
	}
	if beforeMarker(lease, &b) {
		m.undo(ctx, r, lease, req, errMarkedLost)
		return nil, refuse(CodeUnavailable, errMarkedLost)
	}
	if err := m.markBegun(ctx, r, lease, b); err != nil {
		return nil, err
	}
	if !m.work.startHandler() {
		m.neverRuns(ctx, r, lease, b)
		return nil, refuse(CodeUnavailable, errClosed)
	}
	if r.first != nil {
		r.first.begun.Store(true)
	}
	m.observe(ctx, r, telemetry.Event{Type: telemetry.EventBegun, Attempt: b.record.Attempt, State: driver.StatePending})
	return &b, nil
}

// lockRun is a run under a lock.
type lockRun struct {
	*run
	lease      *held
	misbehaved int // how often the store broke its contract in answers to Settle
}

// lost reports whether the lease ended under the handler.
func (run *lockRun) lost() bool { return run.lease.Err() != nil }

// finish is steps 7 and 8. resp is nil if the handler returned an error, which is the cause then.
func (m *lockMode) finish(ctx context.Context, run *lockRun, o outcome, resp *driver.Response, cause error) (*Result, error) {
	if run.lost() {
		m.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventOwnershipLost, Attempt: run.settlement.Attempt, Err: run.lease.Err()})
	}
	run.decide(o, resp)
	var settled driver.SettleResult
	var told bool
	err := m.inStep(ctx, telemetry.StepSettle, run.request, 0, func(ctx context.Context) (err error) {
		settled, told, err = m.settle(ctx, run)
		return err
	})
	run.lease.handedOver = true // each branch below gives the lock back, or leaves it to the background
	switch {
	case err != nil && !told:
		return nil, withCause(run.refuse(CodeOwnershipLost, err), cause)
	case err != nil:
		return run.tell(o, o == outcomeNoEffect) // an event tells the error
	case !settled.Settled:
		return m.answerSuperseded(ctx, run, o, &settled.Record, cause)
	}
	return m.answer(ctx, run, o, resp, &settled.Record, cause)
}

// settle is step 7. It settles the attempt in the store and retries for the settle time-out.
// After an error it goes on in the background, with the lock held and duplicates in this
// process refused, until the store has answered or the engine gives up. If a retry cannot help,
// it gives up at once. After an error, told says that the client gets its own outcome all the same,
// because the lease still held.
func (m *lockMode) settle(ctx context.Context, run *lockRun) (res driver.SettleResult, told bool, err error) {
	giveUp := time.Now().Add(m.cfg.settleTimeout)
	pause := backoff{first: 20 * time.Millisecond, most: time.Second}
	for {
		res, err := m.settleOnce(ctx, run, time.Until(giveUp))
		if err == nil {
			return res, false, nil
		}
		if run.hopeless(err) {
			told = !run.lost()
			m.abandon(ctx, run.run, told, err)
			run.lease.ReleaseInBackground()
			return res, told, err
		}
		left := time.Until(giveUp)
		if left <= 0 || !sleep(m.work.ctx, min(pause.next(), left)) {
			told = !run.lost()
			m.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventSettleDelayed, Attempt: run.settlement.Attempt, State: run.settlement.State, Err: err})
			m.settleInBackground(ctx, run, told)
			return res, told, err
		}
	}
}

// settleOnce is one try of step 7. left is the time that the caller still has. The store may repair a record that it
// has lost, or that fell back to its form before the attempt.
func (m *lockMode) settleOnce(ctx context.Context, run *lockRun, left time.Duration) (driver.SettleResult, error) {
	s := &run.settlement
	s.LeaseTrusted = !run.lost()
	res, err := m.callSettle(ctx, run.request, s, left, run.lease.settle)
	rec := &res.Record
	if res.Repaired {
		m.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventRepaired, Attempt: s.Attempt, State: rec.State})
	}
	switch {
	case errors.Is(err, driver.ErrResponseInvalid):
		err = fmt.Errorf("%w: it refuses a settlement without a response: %w", errMisbehaves, err)
	case err == nil && !res.Settled && rec.State.Open() && rec.Attempt == s.Attempt:
		err = fmt.Errorf("%w: it left an open attempt as it was", errMisbehaves)
	}
	return res, err
}

// answer is step 8. The store has the outcome, and answer gives it to the client and releases the lock.
func (m *lockMode) answer(ctx context.Context, run *lockRun, o outcome, resp *driver.Response, rec *driver.Record, cause error) (*Result, error) {
	run.mark(rec)
	m.ended(ctx, run.run, settledEvents[run.settlement.State], rec.State, cause)
	switch o {
	case outcomeCompleted:
		// Repeats read the record first, so the release may follow the answer.
		run.lease.ReleaseInBackground()
		m.endFirst(run.request, run.repeatable(resp))
	case outcomeNoEffect:
		// An immediate retry takes the lock, so it has to be free before the answer.
		m.release(ctx, run.request, run.lease, run.settlement.Attempt)
	default:
		return m.inDoubt(ctx, run, cause)
	}
	return run.tell(o, o == outcomeNoEffect)
}

// answerSuperseded is step 8 if an operator or the resolver of the next holder settled the attempt
// first. rec has what they decided.
func (m *lockMode) answerSuperseded(ctx context.Context, run *lockRun, o outcome, rec *driver.Record, cause error) (*Result, error) {
	run.mark(rec)
	lost := run.lost()
	m.superseded(ctx, run, !lost, rec, cause)
	run.lease.ReleaseInBackground()
	switch {
	case rec.State == driver.StateCompleted:
		res, err := run.judge(rec)
		return res, withCause(err, cause)
	case lost:
		err := fmt.Errorf("idem: attempt %d was settled by others as %v", run.settlement.Attempt.Number, rec.State)
		return nil, withCause(run.refuse(CodeOwnershipLost, err), cause)
	}
	return run.tell(o, rec.State == driver.StateReleased)
}

// superseded reports an attempt that was settled in another way. told says that the client gets
// its own outcome all the same.
func (m *lockMode) superseded(ctx context.Context, run *lockRun, told bool, rec *driver.Record, cause error) {
	if told && run.settlement.State == driver.StateCompleted && rec.State != driver.StateCompleted && rec.State != driver.StateExpired {
		err := fmt.Errorf("idem: the store has attempt %d, %v", rec.Attempt.Number, rec.State)
		m.ended(ctx, run.run, telemetry.EventUnstored, rec.State, errors.Join(err, cause))
		return
	}
	m.ended(ctx, run.run, telemetry.EventSuperseded, rec.State, cause)
}

// inDoubt asks the resolver about our attempt, if that just ended in doubt. It takes the lock
// anew first. A late call of the attempt carries its fence, so only a later fence
// can shut it out.
func (m *lockMode) inDoubt(ctx context.Context, run *lockRun, cause error) (*Result, error) {
	if run.lost() {
		run.lease.ReleaseInBackground()
		return nil, withCause(run.refuse(CodeOwnershipLost, run.lease.Err()), cause)
	}
	r := run.request
	m.release(ctx, r, run.lease, run.settlement.Attempt)
	if r.Policy.InDoubt.resolver == nil {
		return run.tell(outcomeInDoubt, false) // the next request runs again, or an operator decides
	}
	lease, err := m.lock(ctx, r)
	if err != nil {
		return run.tell(outcomeInDoubt, false) // the new holder, or the next request, asks the resolver
	}
	var f finding
	if f.record, err = m.read(ctx, r); err == nil {
		f, err = m.found(ctx, r, lease, f.record)
	}
	lease.giveBack(ctx, r, &f.record)
	switch {
	case err != nil:
		return run.tell(outcomeInDoubt, false) // the next request asks the resolver
	case f.again && classify(run.Transport, r.Policy, run.response.Status, false) == outcomeNoEffect:
		return run.tell(outcomeNoEffect, true) // the resolver says the same
	case f.again:
		return run.tell(outcomeInDoubt, true)
	}
	m.endFirst(r, f.result)
	return f.result, nil
}

// release gives the lock back and waits for it. After a failure the lease tries again in
// the background.
func (m *lockMode) release(ctx context.Context, r *request, lease *held, attempt driver.Attempt) {
	call, cancel := context.WithTimeout(ctx, m.cfg.lockTimeout)
	defer cancel()
	if err := callRelease(call, lease); err != nil {
		m.observe(ctx, r, telemetry.Event{Type: telemetry.EventReleaseFailed, Attempt: attempt, Err: err})
	}
}

func callRelease(ctx context.Context, lease *held) (err error) {
	defer recovered("Release", &err)
	return lease.Release(ctx)
}
