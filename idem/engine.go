package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

// Engine runs operations at most once per key. It is safe for concurrent use.
//
// [Engine.Do] has the steps of the protocol in their order. Steps 1 and 2 are the same in every
// mode: admit in this file, and waitForFirst in first.go. So is the answer from a record (judge in core.go). Steps 3 to 8
// belong to the mode. An engine from [New] has that of lockmode.go, or of combined.go if lock and store are in one
// place. One from [NewJoined] has that of joined.go.
type Engine struct {
	*core
	mode mode
}

// mode is how an engine takes a key, runs the handler and stores the outcome. The modes know the
// core and not the engine.
type mode interface {
	// look is step 3. It may also do 4 and 5 in the same call. Then begun is set, and attempt goes on at step 6. The error is
	// a refusal, or errAgain.
	look(ctx context.Context, r *request) (looked, error)
	// attempt takes steps 4 to 8 for a request that its record does not answer. The error errAgain
	// starts the request over at step 2.
	attempt(ctx context.Context, r *request, l looked, h Handler) (*Result, error)
	// unread answers a request whose record could not be read, because of err. rec is what of it is known.
	unread(ctx context.Context, r *request, rec driver.Record, h Handler, err error) (*Result, error)
	// claim takes a key whose open attempt is to be settled without a request.
	claim(ctx context.Context, r *request) (claim, error)
	// seen is a record for those who ask for the status of a key. stored is what the store has.
	seen(ctx context.Context, id driver.KeyID, stored driver.Record) (driver.Record, error)
	// transactional reports whether the outcome commits together with what the handler writes.
	transactional() bool
	// lockedBy is the locker, or nil.
	lockedBy() driver.Locker
	// inspector is what operators ask about locks, or nil.
	inspector() driver.LockInspector
	// setup is what the guarantee of a route follows from, without its policy.
	setup() guarantee.Setup
	// ping returns nil if the mode would take a key, as far as the store does not say so.
	ping(ctx context.Context) error
}

// looked is what look has found.
type looked struct {
	record driver.Record
	locked bool   // another owner had the lock; the record may be none then, although there is one
	begun  *begun // an attempt that has begun in the same trip, under lease or in tx
	lease  *held
	tx     driver.JoinedTx
	tries  bool // this request is the one that may ask a store which takes no writes
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
	c, err := newCore(store, opts)
	if err != nil {
		return nil, err
	}
	if c.cfg.conflictRetries > 0 {
		return nil, errors.New("idem: WithConflictRetries is for NewJoined: an engine from New has no transaction that could meet a conflict")
	}
	if locker.Visibility() == driver.VisibilityShared && store.Visibility() == driver.VisibilityProcess && !c.cfg.singleInstance {
		return nil, errors.New("idem: other instances share the lock and cannot see the records of this token store, so each of them would run a key again; share the store, or say WithSingleInstance")
	}
	m := newLockMode(c, locker)
	if combined, ok := newCombinedMode(m); ok {
		return newEngine(c, combined), nil
	}
	return newEngine(c, m), nil
}

// MustNew is [New] for known-good wiring. Like [regexp.MustCompile] it panics where New returns an
// error.
func MustNew(locker driver.Locker, store driver.Store, opts ...Option) *Engine {
	return must(New(locker, store, opts...))
}

func must(e *Engine, err error) *Engine {
	if err != nil {
		panic(err)
	}
	return e
}

func newEngine(c *core, m mode) *Engine {
	e := &Engine{core: c, mode: m}
	if c.cfg.telemetry != nil {
		c.cfg.telemetry.Watch(e, c.store)
	}
	return e
}

// MayRunAgain is for adapters. It reports whether [Engine.Do] may run the handler of op more than
// once, because of [WithConflictRetries]. Every run has to get the same input, whatever an earlier
// run has done to its own.
func (e *Engine) MayRunAgain(op *Operation) bool {
	return e.mode.transactional() && e.cfg.conflictRetries > 0 && !op.RunOnce
}

// Joined is for adapters. It reports whether the engine comes from [NewJoined]. Then nothing of a
// success may reach the client before [Engine.Do] has returned, because COMMIT can still undo it.
func (e *Engine) Joined() bool { return e.mode.transactional() }

// request is an Operation on its way through the protocol. It belongs to one goroutine. After a
// settlement that goes on in the background, Do reads telemetry.settled alone.
type request struct {
	Operation
	id          driver.KeyID
	fingerprint driver.Fingerprint // in the current version, by the first key
	keys        fingerprintKeys
	giveUp      time.Time // when a duplicate stops waiting for the first request
	first       *first    // set while duplicates in this process wait for this request
	reading     bool      // among the readers of its key
	ended       uint32    // what place.ended was before the record was read
	onlyReads   bool      // step 3 only reads in every mode
	open        bool      // an attempt of the key was seen to run or to be in doubt
	counted     bool      // among the open executions of its scope
	retries     int       // how often the handler may still run again after a conflict
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
			return nil, refuse(CodeUnavailable, fmt.Errorf("%w: %w", errCallerGone, err))
		}
		// Step 2: wait for the first request with the key, if it runs in this process.
		if res, err := e.waitForFirst(ctx, r); res != nil || err != nil {
			return res, err
		}
		// Step 3: read the record. It may answer the request.
		l, err := e.mode.look(ctx, r)
		if errors.Is(err, errAgain) {
			continue
		}
		if err != nil {
			return e.mode.unread(ctx, r, l.record, h, err)
		}
		if l.begun == nil {
			if !l.locked || l.record.State != driver.StateNone { // otherwise attempt looks what its owner has begun with
				if res, err := e.fromRecord(ctx, r, &l.record); res != nil || err != nil {
					e.endFirst(r, res)
					return res, err
				}
			}
			// We have seen an attempt run. It is over only if the record says so.
			r.open = l.record.State.Open() || r.open && l.record.State != driver.StateReleased
			if e.work.closing.Err() != nil { // the request may have waited until now
				return nil, refuse(CodeUnavailable, errClosed)
			}
			if !e.becomeFirst(r) {
				continue
			}
			if err := e.limit.enter(r); err != nil {
				return nil, err
			}
		}
		e.endLook(r)
		// Steps 4 to 8: take the key, run the handler, settle the attempt.
		if res, err := e.mode.attempt(ctx, r, l, h); !errors.Is(err, errAgain) {
			return res, err
		}
	}
}

// errCallerGone says that the client has left. It is no fault of the server.
var errCallerGone = errors.New("idem: caller is gone")

// errAgain says that the request starts over at step 2.
var errAgain = errors.New("idem: start over")

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
	if err := e.fits(op.Policy); err != nil {
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
