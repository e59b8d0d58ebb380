package idem

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Engine runs operations at most once per key. It is safe for concurrent use.
//
// This file is the protocol, step by step; [Engine.Do] is its order. What a
// step needs beside the rules is elsewhere: requests running here in
// flight.go, attempts that others left open in found.go and resolve.go, durable
// markers in mark.go, work that goes on behind the answer in background.go,
// failing open in run.go.
type Engine struct {
	locker  Locker
	store   Store
	cfg     config
	flights flights
	limit   openLimit
	running runningList
	work    work
}

// New returns an engine on a locker and a store. It refuses a locker that
// other processes cannot see with a store that they can.
//
// The reverse, a shared lock with a store that only this process can see, is
// accepted and is right for a single instance only: another one would know
// nothing of this one's keys. Whoever wires that sees to there being one.
func New(locker Locker, store Store, opts ...Option) (*Engine, error) {
	if locker == nil || store == nil {
		return nil, errors.New("idem: New needs a locker and a store")
	}
	if locker.Visibility() == VisibilityProcess && store.Visibility() == VisibilityShared {
		return nil, errors.New("idem: a lock that other processes cannot see cannot guard a token store that they can")
	}
	e := &Engine{locker: locker, store: store, cfg: defaultConfig()}
	for _, opt := range opts {
		if opt != nil {
			opt(&e.cfg)
		}
	}
	if err := e.cfg.validate(); err != nil {
		return nil, err
	}
	e.limit.most, e.running.limit = e.cfg.maxOpenPerScope, e.cfg.longRunning
	e.flights.init()
	e.work.init()
	return e, nil
}

// request is an Operation on its way through the protocol.
type request struct {
	Operation
	id          KeyID
	fingerprint Fingerprint // in the current version
	giveUp      time.Time   // when a duplicate stops waiting for the first
	flight      *flight     // that this request leads; nil where it leads none, or no longer
	own         flight      // what flight points to
	nonce       Nonce       // of the lease, and of the attempt that begins under it
	open        bool        // an attempt was seen that runs or is in doubt
	counted     bool        // among the open executions of its scope
	restore     Repair      // what the attempt that has begun can be written anew from

	// seen has the record as the store last told it. It is here, and run holds
	// what else is large, because a request has its goroutine to itself, as gRPC
	// and net/http start one for each: frames of several records would make its
	// stack grow twice more, which costs as much as the rest of the protocol. For
	// the same reason functions with large frames that are called on the way, and
	// are left again, are marked go:noinline.
	seen SettleResult

	call bounded // the context of calls to store and lock; see within
}

// within is [withTimeout] for a call in the course of the request, one at a
// time.
func (r *request) within(ctx context.Context, d time.Duration) *bounded {
	if r.call.renew(ctx, d) {
		return &r.call
	}
	return withTimeout(ctx, d)
}

// Do executes an operation, or answers it with the outcome of an earlier
// execution. The error is a [*Refusal], or what the handler returned. Within the
// running execution of the same key it would wait for itself, and is refused at once
// with ErrNested. A panic of the handler goes on to the caller once the attempt has been settled.
func (e *Engine) Do(ctx context.Context, op Operation, h Handler) (Result, error) {
	r, err := e.admit(ctx, op, h)
	if err != nil {
		return e.refused(ctx, op.Policy, KeyID{}, err)
	}
	defer e.work.done()
	if e.inside(ctx, r.id) != nil {
		return e.refused(ctx, op.Policy, r.id, refuse(CodeInternal, ErrNested))
	}
	res, err := e.do(ctx, r, h)
	if err != nil {
		return e.refused(ctx, op.Policy, r.id, err)
	}
	res.KeyID = r.id
	return res, nil
}

// do is the order of the protocol.
func (e *Engine) do(ctx context.Context, r *request, h Handler) (Result, error) {
	defer e.limit.leave(r)
	defer e.land(r, nil)
	for {
		if err := ctx.Err(); err != nil {
			return Result{}, refuse(CodeUnavailable, fmt.Errorf("idem: caller is gone: %w", err))
		}
		// Step 2: a duplicate of a request running in this process.
		if res, err := e.join(ctx, r); res != nil || err != nil {
			return deref(res), err
		}
		// Step 3: what the record alone can answer.
		if err := e.read(ctx, r); err != nil {
			return e.failOpen(ctx, r, h, err)
		}
		if res, err := e.judge(r, &r.seen.Record); res != nil || err != nil {
			if res != nil {
				e.replayed(ctx, r)
				e.land(r, res)
			}
			return deref(res), err
		}
		// What was seen to run is over only where the record says so.
		r.open = r.seen.Record.State.Open() || r.open && r.seen.Record.State != StateReleased
		if !e.lead(r) {
			continue
		}
		if err := e.limit.enter(r); err != nil {
			return Result{}, err
		}
		// From here on it goes to its end, whether the caller stays or not.
		detached := context.WithoutCancel(ctx)
		// Step 4: the lock.
		lease, err := e.lock(detached, r)
		if errors.Is(err, ErrLocked) {
			r.open = true // until the record says otherwise
			e.limit.leave(r)
			res, err := e.locked(ctx, r)
			if res == nil && err == nil {
				continue
			}
			e.land(r, res)
			return deref(res), err
		}
		if err != nil {
			return e.failOpen(ctx, r, h, refuse(CodeUnavailable, err))
		}
		// Step 5: begin, under the lock.
		attempt, res, err := e.begin(detached, r, lease)
		if res != nil || err != nil {
			if err != nil {
				return e.failOpen(ctx, r, h, err)
			}
			e.land(r, res)
			return *res, nil
		}
		// Step 6.
		run := e.execute(detached, r, lease, attempt, h)
		// Steps 7 and 8.
		return e.conclude(detached, run)
	}
}

// admit is step 1: what can be refused without asking anybody. The key itself
// was read by ParseKey.
func (e *Engine) admit(ctx context.Context, op Operation, h Handler) (*request, error) {
	switch {
	case h == nil:
		return nil, refuse(CodeInternal, errors.New("idem: operation without handler"))
	case op.Policy == nil || op.Fingerprint == nil:
		return nil, refuse(CodeInternal, errors.New("idem: operation without policy or fingerprint"))
	case len(op.Key) == 0:
		return nil, refuse(CodeKeyMissing, nil)
	case len(op.Key) > MaxKeyBytes:
		return nil, refuse(CodeKeyInvalid, fmt.Errorf("idem: key of %d bytes", len(op.Key)))
	}
	var err error
	if op.Policy, err = op.Policy.complete(); err != nil {
		return nil, refuse(CodeInternal, err)
	}
	if err := op.Policy.KeyFormat.admit(op.Key); err != nil {
		return nil, err
	}
	if op.Scope == "" {
		if op.Scope, err = op.Policy.ScopeOf(ctx); err != nil {
			return nil, err
		}
	}
	fp, err := op.Fingerprint(FingerprintVersion)
	switch {
	case err != nil:
		return nil, asRefusal(CodeBodyInvalid, err)
	case fp.IsZero() || fp.Version != FingerprintVersion:
		return nil, refuse(CodeInternal, fmt.Errorf("idem: the fingerprint is zero or of version %d, want version %d", fp.Version, FingerprintVersion))
	}
	if !e.work.add() {
		return nil, refuse(CodeUnavailable, errClosed)
	}
	id := NewKeyID(op.Scope, op.Key)
	r := &request{Operation: op, id: id, fingerprint: fp}
	if op.Policy.DuplicateWait > 0 {
		r.giveUp = time.Now().Add(op.Policy.DuplicateWait)
	}
	return r, nil
}

// read is step 3: one round trip, from the primary.
func (e *Engine) read(ctx context.Context, r *request) (err error) {
	call := r.within(ctx, e.cfg.storeTimeout)
	defer call.stop()
	r.seen.Record, err = e.store.Get(call, r.id)
	switch {
	case unreadable(err):
		e.observe(ctx, r, &Event{Type: EventUnreadable, Err: err})
	case r.seen.Record.ResponseErr != nil:
		e.observe(ctx, r, &Event{Type: EventUnreadable, Attempt: r.seen.Record.Attempt, State: r.seen.Record.State, Err: r.seen.Record.ResponseErr})
	}
	if err != nil {
		return storeRefusal(err)
	}
	return nil
}

// judge says what the record answers by itself: a result to replay, or a
// refusal. Neither: the request needs the lock, or holds it and may go on.
func (e *Engine) judge(r *request, rec *Record) (*Result, error) {
	if rec.State == StateNone {
		if r.Policy.Kind == IssuedToken {
			return nil, refuse(CodeTokenUnknown, nil)
		}
		return nil, nil
	}
	if rec.Kind != r.Policy.Kind {
		if r.Policy.Kind == IssuedToken {
			return nil, refuse(CodeTokenUnknown, errors.New("idem: a client key where a token is wanted"))
		}
		return nil, refuse(CodeKeyReused, errors.New("idem: an issued token where a client key is wanted"))
	}
	if rec.State == StateIssued || rec.State == StateReleased {
		return nil, nil // bound to no request
	}
	if same, err := r.matches(rec.Fingerprint); err != nil {
		return nil, refuse(CodeUnavailable, err)
	} else if !same {
		return nil, refuse(CodeKeyReused, errors.New("idem: fingerprint differs"))
	}
	switch rec.State {
	case StateCompleted:
		switch {
		case errors.Is(rec.ResponseErr, ErrNewerRecord): // an instance of that build can answer
			return nil, refuse(CodeUnavailable, rec.ResponseErr)
		case rec.Response == nil || rec.Response.Omitted:
			return nil, refuse(CodeResultUnavailable, rec.ResponseErr)
		}
		return replay(rec), nil
	case StateExpired:
		return nil, refuse(CodeKeyExpired, nil)
	case StateUnknown:
		if r.Policy.InDoubt.unanswered() {
			return r.unknown(rec)
		}
	}
	return nil, nil // pending, or unknown and somebody to ask: only the lock's holder may tell
}

// matches compares the request with a stored fingerprint, in its version. It
// may be called under the lock, which a panic of the fingerprinter must not
// leave behind.
func (r *request) matches(stored Fingerprint) (same bool, err error) {
	if stored.Version == r.fingerprint.Version {
		return stored == r.fingerprint, nil
	}
	if r.Fingerprint == nil { // Resolve and Decide come without a request
		return false, errors.New("idem: only a durable marker knows of the attempt, and the token store cannot take it up")
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("idem: fingerprinter panicked: %v", p)
		}
	}()
	fp, err := r.Fingerprint(stored.Version)
	return fp == stored && !fp.IsZero(), err
}

// lock is step 4.
func (e *Engine) lock(ctx context.Context, r *request) (Lease, error) {
	call := r.within(ctx, e.cfg.lockTimeout)
	defer call.stop()
	r.nonce = NewNonce()
	return e.locker.TryAcquire(call, LockRequest{KeyID: r.id, Nonce: r.nonce})
}

// locked is the answer to a duplicate of a request that runs elsewhere. With
// neither result nor error the lock looked free, and the caller starts over.
func (e *Engine) locked(ctx context.Context, r *request) (*Result, error) {
	if r.seen.Record.State != StatePending {
		// The holder may have begun since, and a mismatch beats in-progress.
		if err := e.read(ctx, r); err != nil {
			return nil, err
		}
		if res, err := e.judge(r, &r.seen.Record); res != nil || err != nil {
			if res != nil {
				e.replayed(ctx, r)
			}
			return res, err
		}
	}
	left := time.Until(r.giveUp)
	if left <= 0 {
		return nil, refuse(CodeInProgress, nil)
	}
	waitCtx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	e.observe(ctx, r, &Event{Type: EventWaited})
	switch err := e.locker.Wait(waitCtx, r.id); {
	case err == nil:
		return nil, nil
	case waitCtx.Err() != nil:
		return nil, refuse(CodeInProgress, nil)
	default:
		return nil, refuse(CodeUnavailable, err)
	}
}

// begin is step 5. It returns the attempt that has started; or a stored
// outcome; or a refusal. Unless an attempt has started, the lock has been
// given back, or is held in the background until the Begin is undone.
func (e *Engine) begin(ctx context.Context, r *request, lease Lease) (Attempt, *Result, error) {
	req := BeginRequest{Kind: r.Policy.Kind, Route: r.Policy.Name, Fence: lease.Fence(), Nonce: r.nonce,
		Fingerprint: r.fingerprint, KeyTTL: r.Policy.KeyTTL}
	if res, told, err := e.heed(ctx, r, lease); told {
		lease.ReleaseInBackground()
		return Attempt{}, res, err
	}
	// A second round where the first found an attempt in doubt that was then settled
	// as not applied, or is to be started over from; more only where others decide
	// meanwhile.
	for range beginRounds {
		begun, err := e.callBegin(ctx, r, &req)
		switch {
		case unreadable(err):
			e.observe(ctx, r, &Event{Type: EventUnreadable, Err: err})
			lease.ReleaseInBackground()
			return Attempt{}, nil, storeRefusal(err)
		case errors.Is(err, ErrStoreLost), errors.Is(err, ErrStaleFence):
			lease.ReleaseInBackground()
			return Attempt{}, nil, storeRefusal(err)
		case err != nil: // it may have been applied, or may be yet
			e.abortBehind(ctx, r, lease, req)
			return Attempt{}, nil, storeRefusal(err)
		case begun && lease.Err() != nil:
			e.abortBehind(ctx, r, lease, req)
			return Attempt{}, nil, refuse(CodeOwnershipLost, lease.Err())
		case begun && behind(lease, &r.seen.Record):
			e.abortBehind(ctx, r, lease, req)
			return Attempt{}, nil, refuse(CodeUnavailable, errors.New("idem: the token store lost what the marker tells, meanwhile"))
		case begun:
			if err := e.markBegun(ctx, r, lease); err != nil {
				return Attempt{}, nil, err
			}
			r.flight.begun()
			e.observe(ctx, r, &Event{Type: EventBegun, Attempt: r.seen.Record.Attempt, State: StatePending})
			return r.seen.Record.Attempt, nil, nil
		}
		res, again, err := e.found(ctx, r, lease)
		if !again {
			mark(lease, &r.seen.Record)
			lease.ReleaseInBackground()
			return Attempt{}, res, err
		}
		req.RunAgainFrom, req.Fingerprint = nil, r.fingerprint
		// The key stays bound as it is. Where the route does not run again, the store has
		// fallen back to an open attempt that is still to be settled.
		if rec := &r.seen.Record; rec.State.Open() && r.Policy.InDoubt.again {
			from := rec.Attempt
			req.RunAgainFrom, req.Fingerprint = &from, rec.Fingerprint
		}
	}
	lease.ReleaseInBackground()
	return Attempt{}, nil, refuse(CodeInProgress, errors.New("idem: the record kept changing under the lock"))
}

// beginRounds bounds how often begin starts over.
const beginRounds = 4

func (e *Engine) callBegin(ctx context.Context, r *request, req *BeginRequest) (begun bool, err error) {
	call := r.within(ctx, e.cfg.storeTimeout)
	defer call.stop()
	err = r.took(e.store.Begin(call, r.id, *req))
	return r.seen.Settled, err
}

// took keeps what a store answered to Begin.
//
//go:noinline
func (r *request) took(b BeginResult, err error) error {
	r.seen.Settled, r.seen.Record = b.Begun, b.Record
	rec := &b.Record
	r.restore = Repair{Kind: rec.Kind, Route: rec.Route, Fingerprint: rec.Fingerprint, Started: rec.Started, Replaced: b.Replaced}
	return err
}

// execute is step 6: the handler, and what its result says.
func (e *Engine) execute(ctx context.Context, r *request, lease Lease, attempt Attempt, h Handler) *run {
	run := &run{request: r, lease: lease}
	run.settlement.Attempt, run.started = attempt, time.Now()
	x := &run.execution
	x.init(ctx, e, r, lease, attempt, r.Policy.HandlerTimeout)
	defer x.end()
	e.startRunning(ctx, run)
	defer e.running.remove(&run.entry)

	returned := false
	defer func() {
		x.ended.Store(true)
		if !returned { // a panic, or runtime.Goexit: it goes on once the attempt is settled
			_, _ = e.settle(ctx, run, outcomeInDoubt, crashResponse(r.Transport), errPanic)
		}
	}()
	run.response, run.err = h(x)
	returned = true
	run.cut = x.Err() != nil
	return run
}

// conclude judges what the handler returned, and settles it.
func (e *Engine) conclude(ctx context.Context, run *run) (Result, error) {
	x, resp, err := &run.execution, &run.response, run.err
	o := outcomeInDoubt
	switch {
	case x.noEffect.Load():
		o = outcomeNoEffect
	case err == nil && run.cut:
		o = classifyCut(run.Transport, resp.Status)
	case err == nil:
		o = classify(run.Transport, resp.Status, x.gated.Load())
	}
	if o == outcomeNoEffect && run.rerun() { // of this attempt, and the one in doubt may have had one
		o = outcomeInDoubt
		if err == nil && run.Transport == TransportDirect { // whose caller reads that as success
			err = refuse(CodeOutcomeUnknown, errEarlierInDoubt)
		}
	}
	if err == nil {
		return e.settle(ctx, run, o, resp, nil)
	}
	res, settleErr := e.settle(ctx, run, o, nil, err)
	if res.Replayed || settleErr != nil { // decided, or no longer ours to tell
		return res, withCause(settleErr, err)
	}
	return Result{}, err
}

// settle is steps 7 and 8: store the outcome, then answer, then give the lock
// back. resp is nil where the handler returned an error instead.
func (e *Engine) settle(ctx context.Context, run *run, o outcome, resp *Response, cause error) (Result, error) {
	if run.lost() {
		e.ownershipLost(ctx, run)
	}
	run.settle(o, resp)
	settled, err := e.save(ctx, run)
	return e.answer(ctx, run, o, resp, cause, settled, err)
}

// ownershipLost reports that the lease ended under the handler.
func (e *Engine) ownershipLost(ctx context.Context, run *run) {
	e.observe(ctx, run.request, &Event{Type: EventOwnershipLost, Attempt: run.settlement.Attempt, Err: run.lease.Err()})
}

// ended reports what has become of an attempt.
func (e *Engine) ended(ctx context.Context, run *run, t EventType, cause error) {
	if e.cfg.observer != nil {
		e.observe(ctx, run.request, &Event{Type: t, Attempt: run.settlement.Attempt, State: run.seen.Record.State, Duration: time.Since(run.started), Err: cause})
	}
}

// answer is step 8, after a save that did or did not settle the attempt.
func (e *Engine) answer(ctx context.Context, run *run, o outcome, resp *Response, cause error, settled bool, err error) (Result, error) {
	if err != nil { // saving goes on behind the answer, under the lock
		if !run.told {
			return Result{}, refuse(CodeOwnershipLost, err)
		}
		return run.live(resp), nil
	}
	run.mark()
	if !settled {
		lost := run.lost()
		e.setAside(ctx, run, !lost, cause)
		run.lease.ReleaseInBackground()
		return e.superseded(run, resp, lost)
	}
	e.ended(ctx, run, settledEvents[o], cause)
	switch o {
	case outcomeCompleted:
		// Repeats read the record first, so the lock may follow the answer.
		run.lease.ReleaseInBackground()
		res := run.live(resp)
		e.land(run.request, run.repeatable(resp))
		return res, nil
	case outcomeNoEffect:
		// An immediate retry needs the lock: it has to be free by then.
		e.release(ctx, run)
		return run.live(resp), nil
	default:
		return e.inDoubt(ctx, run, resp)
	}
}

// superseded answers for an attempt that somebody else has settled while its
// handler ran: an operator, or the next holder's resolver.
func (e *Engine) superseded(run *run, resp *Response, lost bool) (Result, error) {
	rec := &run.seen.Record
	if rec.State == StateCompleted {
		res, err := e.judge(run.request, rec)
		return deref(res), err
	}
	if lost {
		return Result{}, refuse(CodeOwnershipLost, fmt.Errorf("idem: attempt %d was settled by others as %v", run.settlement.Attempt.Number, rec.State))
	}
	return run.live(resp), nil
}

// release gives the lock back and waits for it. A failure is retried by the
// lease in the background.
func (e *Engine) release(ctx context.Context, run *run) {
	call := run.within(ctx, e.cfg.lockTimeout)
	defer call.stop()
	if err := run.lease.Release(call); err != nil {
		e.observe(ctx, run.request, &Event{Type: EventReleaseFailed, Attempt: run.settlement.Attempt, Err: err})
	}
}
