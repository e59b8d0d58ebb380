package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// Engine runs operations at most once per key. It is safe for concurrent use.
//
// [Engine.Do] has the steps of the protocol in their order. Steps 1 to 4 are in this file,
// step 5 is in begin.go, step 6 in execute.go, and steps 7 and 8 are in settle.go. An engine from
// [NewJoined] has the same steps 1 to 3, and the others in joined.go.
type Engine struct {
	locker  driver.Locker
	store   driver.Store
	joined  driver.JoinedStore // nil unless the engine comes from NewJoined
	cfg     config
	firsts  firsts
	limit   openLimit
	waiters waiters
	running running
	work    work
	intake  intake
	undoing undoing
	history history
	behind  resolversBehind
}

// New returns an engine on a locker and a store. Both have to be shared with other processes, or
// both local to this one.
//
// New refuses a local locker with a shared store. It also refuses a shared locker with a local
// store, because a second instance would know nothing of the keys of the first one and would run
// them again. A service with one instance says so by [WithSingleInstance].
func New(locker driver.Locker, store driver.Store, opts ...Option) (*Engine, error) {
	if locker == nil || store == nil {
		return nil, errors.New("idem: New needs a locker and a store")
	}
	if locker.Visibility() == driver.VisibilityProcess && store.Visibility() == driver.VisibilityShared {
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
	if locker.Visibility() == driver.VisibilityShared && store.Visibility() == driver.VisibilityProcess && !e.cfg.singleInstance {
		return nil, errors.New("idem: other instances share the lock and cannot see the records of this token store, so each of them would run a key again; share the store, or say WithSingleInstance")
	}
	e.limit.most = e.cfg.maxOpenPerScope
	e.waiters = waiters{mostPerKey: e.cfg.maxWaiting[0], mostPerScope: e.cfg.maxWaiting[1],
		byKey: make(map[driver.KeyID]int), byScope: make(map[string]int)}
	e.firsts.byKey = make(map[driver.KeyID]place)
	e.history.init(locker)
	e.running.reports = make(map[*run]report)
	e.work.init()
	if e.cfg.telemetry != nil {
		e.cfg.telemetry.Watch(e, store)
	}
	return e, nil
}

// request is an Operation on its way through the protocol. It belongs to one goroutine. After a
// settlement that goes on in the background, record belongs to that, and Do reads telemetry.settled alone.
type request struct {
	Operation
	id          driver.KeyID
	fingerprint driver.Fingerprint // in the current version, by the first key
	keys        fingerprintKeys
	giveUp      time.Time     // when a duplicate stops waiting for the first request
	first       *first        // set while duplicates in this process wait for this request
	reading     bool          // among the readers of its key
	ended       uint32        // what place.ended was before the record was read
	nonce       driver.Nonce  // of the lease, and of the attempt that begins under it
	record      driver.Record // as the store last returned it
	repair      driver.Repair // how to write the begun attempt anew if the store loses it
	open        bool          // an attempt of the key was seen to run or to be in doubt
	handedOver  bool          // the lock is released, or will be by later steps or in the background
	counted     bool          // among the open executions of its scope
	retries     int           // how often the handler may still run again after a conflict
	telemetry   requestTelemetry
}

// Do executes an operation, or answers it with the outcome of an earlier execution. The error
// is a [*Refusal] or the error of the handler. Inside the running execution of the same key Do
// would wait for itself, so it refuses at once with ErrNested. If the handler panics, Do
// settles the attempt and lets the panic continue.
func (e *Engine) Do(ctx context.Context, op Operation, h Handler) (_ Result, err error) {
	var r *request
	var res *Result
	route := ""
	if op.Policy != nil {
		route = op.Policy.Name
	}
	ctx, step := e.startRequest(ctx, route)
	defer func() { step.endRequest(route, r, res, err) }()
	r, err = e.admit(ctx, op, h)
	if err != nil {
		return e.refused(ctx, op.Policy, driver.KeyID{}, err)
	}
	r.telemetry.trace = step.trace
	defer e.work.done()
	if e.inside(ctx, r.id) != nil {
		return e.refused(ctx, op.Policy, r.id, refuse(CodeInternal, ErrNested))
	}
	res, err = e.do(ctx, r, h)
	if err != nil {
		return e.refused(ctx, op.Policy, r.id, err)
	}
	answer := *res // waiting duplicates may share res
	answer.KeyID = r.id
	return answer, nil
}

// do is the order of the protocol. A step with a result or an error answers the request.
func (e *Engine) do(ctx context.Context, r *request, h Handler) (*Result, error) {
	defer e.limit.leave(r)
	defer e.endFirst(r, nil)
	defer e.stopReading(r)
	for {
		if err := ctx.Err(); err != nil {
			return nil, refuse(CodeUnavailable, fmt.Errorf("idem: caller is gone: %w", err))
		}
		// Step 2: wait for the first request with the key, if it runs in this process.
		if res, err := e.waitForFirst(ctx, r); res != nil || err != nil {
			return res, err
		}
		// Step 3: read the record.
		if err := e.read(ctx, r); err != nil {
			return e.failOpen(ctx, r, h, err)
		}
		if res, err := e.judge(r, &r.record); res != nil || err != nil {
			if res != nil {
				e.replayed(ctx, r)
				e.endFirst(r, res)
			}
			return res, err
		}
		// We have seen an attempt run. It is over only if the record says so.
		r.open = r.record.State.Open() || r.open && r.record.State != driver.StateReleased
		if e.work.closing.Err() != nil { // the request may have waited until now
			return nil, refuse(CodeUnavailable, errClosed)
		}
		if !e.becomeFirst(r) {
			continue
		}
		if err := e.limit.enter(r); err != nil {
			return nil, err
		}
		// Steps 4 to 8: take the key, run the handler, settle the attempt.
		steps := e.underLock
		if e.joined != nil {
			steps = e.inTransaction
		}
		res, err := steps(ctx, r, h)
		if !errors.Is(err, errAgain) {
			return res, err
		}
	}
}

// errAgain says that the request starts over at step 2.
var errAgain = errors.New("idem: start over")

// underLock has the steps 4 to 8.
func (e *Engine) underLock(ctx context.Context, r *request, h Handler) (*Result, error) {
	// From here on the request goes to its end even if the caller leaves.
	detached := context.WithoutCancel(ctx)
	// Step 4: take the lock, unless the store would not take the attempt.
	if !r.record.State.Open() {
		if err := e.intake.refuses(r.id); err != nil {
			return e.failOpen(ctx, r, h, refuse(CodeUnavailable, err))
		}
	}
	lease, err := e.lock(detached, r)
	if errors.Is(err, driver.ErrLocked) {
		return e.locked(ctx, r)
	}
	if err != nil {
		return e.failOpen(ctx, r, h, refuse(CodeUnavailable, err))
	}
	if e.work.closing.Err() != nil {
		lease.ReleaseInBackground()
		return nil, refuse(CodeUnavailable, errClosed)
	}
	// Step 5: begin the attempt under the lock.
	var begun bool
	var res *Result
	r.handedOver = false
	defer func() {
		if !r.handedOver { // a panic of the lease. The next holder finds the attempt interrupted
			lease.ReleaseInBackground()
		}
	}()
	err = e.inStep(detached, telemetry.StepBegin, r, 0, func(ctx context.Context) (err error) {
		begun, res, err = e.begin(ctx, r, lease)
		return err
	})
	r.handedOver = !begun
	if err != nil {
		return e.failOpen(ctx, r, h, err)
	}
	if !begun {
		e.endFirst(r, res)
		return res, nil
	}
	defer e.work.endHandler() // begin has counted it
	// Step 6: run the handler.
	run := e.execute(detached, r, lease, h)
	// Steps 7 and 8: settle the attempt, answer, release the lock.
	return e.conclude(detached, run)
}

// admit is step 1. It refuses what it can without a call to lock or store. ParseKey has read
// the key before.
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
	r := &request{Operation: op, id: id, fingerprint: e.cfg.fingerprintKeys.current(fp), keys: e.cfg.fingerprintKeys, giveUp: time.Now().Add(op.Policy.DuplicateWait)}
	if !op.RunOnce {
		r.retries = e.cfg.conflictRetries
	}
	return r, nil
}

// read is step 3, one round trip to the primary.
func (e *Engine) read(ctx context.Context, r *request) error {
	err := e.inStep(ctx, telemetry.StepRead, r, e.cfg.storeTimeout, func(ctx context.Context) (err error) {
		defer recovered("Get", &err)
		r.record, err = e.store.Get(ctx, r.id)
		return err
	})
	switch {
	case unreadable(err):
		e.observe(ctx, r, telemetry.Event{Type: telemetry.EventUnreadable, Err: err})
	case r.record.ResponseErr != nil:
		e.observe(ctx, r, telemetry.Event{Type: telemetry.EventUnreadable, Attempt: r.record.Attempt, State: r.record.State, Err: r.record.ResponseErr})
	}
	if err != nil {
		return storeRefusal(err)
	}
	return nil
}

// judge answers from the record alone, with a result to replay or with a refusal. If it returns
// neither, the request needs the lock, or holds it and may go on.
func (e *Engine) judge(r *request, rec *driver.Record) (*Result, error) {
	if rec.State == driver.StateNone {
		if r.Policy.IssuedTokens {
			return nil, refuse(CodeTokenUnknown, nil)
		}
		return nil, nil
	}
	if rec.Kind != r.Policy.kind() {
		if r.Policy.IssuedTokens {
			return nil, refuse(CodeTokenUnknown, errors.New("idem: a client key where a token is wanted"))
		}
		return nil, refuse(CodeKeyReused, errors.New("idem: an issued token where a client key is wanted"))
	}
	if rec.State == driver.StateIssued || rec.State == driver.StateReleased {
		return nil, nil // bound to no request
	}
	if same, err := r.matches(rec.Fingerprint); err != nil {
		return nil, refuse(CodeUnavailable, err)
	} else if !same {
		return nil, refuse(CodeKeyReused, errors.New("idem: fingerprint differs"))
	}
	switch rec.State {
	case driver.StateCompleted:
		switch {
		case errors.Is(rec.ResponseErr, driver.ErrNewerRecord): // an instance of that build can answer
			return nil, refuse(CodeUnavailable, rec.ResponseErr)
		case rec.Response == nil || rec.Response.Omitted:
			return nil, refuse(CodeResultUnavailable, rec.ResponseErr)
		}
		return replay(rec), nil
	case driver.StateExpired:
		return nil, refuse(CodeKeyExpired, nil)
	case driver.StateUnknown:
		if !r.Policy.settles(rec.Attempt) {
			return nil, r.unknown(rec, false)
		}
	}
	return nil, nil // pending, or unknown with a way to settle it; the holder of the lock decides
}

// matches compares the request with a stored fingerprint, in the version and by the key of that.
// It may run under the lock. A panic of the fingerprinter must not leave the lock behind, so
// matches recovers from it.
func (r *request) matches(stored driver.Fingerprint) (same bool, err error) {
	if stored == r.fingerprint {
		return true, nil
	}
	if stored.Version == r.fingerprint.Version && tagOf(stored) == tagOf(r.fingerprint) {
		return false, nil
	}
	key, err := r.keys.ofStored(stored)
	if err != nil {
		return false, err
	}
	if r.Fingerprint == nil { // Resolve and Decide come without a request
		return false, errors.New("idem: only a durable marker knows of the attempt, and the token store cannot take it up")
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("idem: fingerprinter panicked: %v", p)
		}
	}()
	plain, err := r.Fingerprint(stored.Version &^ keyed)
	if err != nil {
		return false, err
	}
	return !plain.IsZero() && key.of(plain) == stored, nil
}

// lock is step 4.
func (e *Engine) lock(ctx context.Context, r *request) (driver.Lease, error) {
	if e.history.locker == nil {
		return e.tryLock(ctx, r)
	}
	for range beginRounds {
		known := e.history.highest()
		lease, err := e.tryLock(ctx, r)
		if err != nil {
			return nil, err
		}
		follows, err := e.inHistory(ctx, r, lease, known)
		if follows {
			return lease, nil
		}
		lease.ReleaseInBackground()
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, errDomainChanges)
}

func (e *Engine) tryLock(ctx context.Context, r *request) (lease driver.Lease, err error) {
	r.nonce = driver.NewNonce()
	err = e.inStep(ctx, telemetry.StepLock, r, e.cfg.lockTimeout, func(ctx context.Context) (err error) {
		defer recovered("TryAcquire", &err)
		lease, err = e.locker.TryAcquire(ctx, driver.LockRequest{KeyID: r.id, Nonce: r.nonce})
		return err
	})
	return lease, err
}

// locked answers a duplicate of a request that runs elsewhere. The error is errAgain if the key
// looked free.
func (e *Engine) locked(ctx context.Context, r *request) (*Result, error) {
	r.open = true // until the record says otherwise
	e.limit.leave(r)
	if r.record.State != driver.StatePending {
		// The holder may have begun since, and a mismatch beats in-progress.
		if err := e.read(ctx, r); err != nil {
			return nil, err
		}
		if res, err := e.judge(r, &r.record); res != nil || err != nil {
			if res != nil {
				e.replayed(ctx, r)
				e.endFirst(r, res)
			}
			return res, err
		}
	}
	left := time.Until(r.giveUp)
	if left <= 0 {
		return nil, refuse(CodeInProgress, nil)
	}
	if err := e.waiters.enter(r); err != nil {
		return nil, err
	}
	defer e.waiters.leave(r)
	e.observe(ctx, r, telemetry.Event{Type: telemetry.EventWaited})
	err := e.inStep(ctx, telemetry.StepWait, r, left, func(ctx context.Context) (err error) {
		defer recovered("Wait", &err)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(e.work.closing, cancel)()
		return e.locker.Wait(ctx, r.id)
	})
	switch {
	case err == nil:
		return nil, errAgain
	case e.work.closing.Err() != nil:
		return nil, refuse(CodeUnavailable, errClosed)
	case ctx.Err() != nil || time.Until(r.giveUp) <= 0:
		return nil, refuse(CodeInProgress, nil)
	default:
		return nil, refuse(CodeUnavailable, err)
	}
}
