package idem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// core is what the modes share: the store, the options, and what goes on in this process.
type core struct {
	store   driver.Store
	cfg     config
	firsts  firsts
	limit   openLimit
	waiters waiters
	running running
	work    work
	behind  resolversBehind
	routes  routes
	faults  faultLog
	keyless keyless
}

func newCore(store driver.Store, opts []Option) (*core, error) {
	c := &core{store: store, cfg: defaultConfig()}
	for _, opt := range opts {
		if opt != nil {
			opt(&c.cfg)
		}
	}
	if err := c.cfg.validate(); err != nil {
		return nil, err
	}
	if s, ok := store.(driver.ReadOnlyStore); ok && s.ReadOnly() {
		return nil, errors.New("idem: the store is read-only, which is for tools: no handler could run")
	}
	c.limit.most = c.cfg.maxOpenPerScope
	c.waiters = waiters{mostPerKey: c.cfg.maxWaiting[0], mostPerScope: c.cfg.maxWaiting[1],
		byKey: make(map[driver.KeyID]int), byScope: make(map[string]int)}
	c.firsts.byKey = make(map[driver.KeyID]place)
	c.running.reports = make(map[*run]report)
	if l, ok := c.cfg.telemetry.(telemetry.Logger); ok && c.cfg.log == nil {
		c.faults.elsewhere = l.Logs()
	}
	c.work.init()
	return c, nil
}

// owner is what an execution has its key by: a lease, a transaction, a committed record in doubt,
// or nothing if the route failed open.
type owner interface {
	// Fence is for resources that check it. It is zero where no lock gives one.
	Fence() driver.Fence
	// Err is nil as long as the key is ours.
	Err() error
	// Check asks for certain, as [CheckOwner] does.
	Check(ctx context.Context) (time.Duration, error)
	// watch calls lost as soon as the key is lost, until ctx ends. It does not wait for that.
	watch(ctx context.Context, lost context.CancelCauseFunc)
}

// claim is the right to settle the attempt of a key that is in doubt. Under a lock nobody else has one
// until giveBack. In joined mode others may, and the compare-and-set of the record decides.
type claim interface {
	owner
	// record reads what is known of the key, now that it is ours. A record with an error is what is
	// known all the same.
	record(ctx context.Context, r *request) (driver.Record, error)
	// outlives returns nil if the holder of an open attempt is over. Otherwise the error is a refusal.
	// It wraps ErrForeignDomain if the claim proves nothing about that holder.
	outlives(ctx context.Context, r *request, open driver.Attempt) error
	// giveBack ends the claim. rec is the record as it is now.
	giveBack(ctx context.Context, r *request, rec *driver.Record)
}

// begun is an attempt that has begun.
type begun struct {
	record driver.Record
	repair driver.Repair // how to write the attempt anew if the store loses it
}

func newBegun(rec driver.Record, replaced driver.Replaced) begun {
	b := begun{record: rec, repair: repairOf(&rec)}
	b.repair.Replaced = replaced
	return b
}

// startedFromDoubt reports whether the attempt started from one in doubt. Then the engine must not
// release it.
func (b *begun) startedFromDoubt() bool { return b.repair.Replaced.State.Open() }

// repairOf returns the data for Settle to write a record anew.
func repairOf(rec *driver.Record) driver.Repair {
	return driver.Repair{Kind: rec.Kind, Route: rec.Route, Fingerprint: rec.Fingerprint, Started: rec.Started,
		ResultTTL: rec.ResultTTL, KeyTTL: rec.KeyTTL}
}

// read is step 3, one round trip to the primary. The error is a refusal.
func (c *core) read(ctx context.Context, r *request) (rec driver.Record, err error) {
	err = c.inStep(ctx, telemetry.StepRead, r, c.cfg.storeTimeout, func(ctx context.Context) (err error) {
		defer recovered("Get", &err)
		rec, err = c.store.Get(ctx, r.id)
		return err
	})
	return rec, c.hasRead(ctx, r, &rec, err)
}

// hasRead reports what could not be read. It returns err as a refusal.
func (c *core) hasRead(ctx context.Context, r *request, rec *driver.Record, err error) error {
	switch {
	case unreadable(err):
		c.observe(ctx, r, telemetry.Event{Type: telemetry.EventUnreadable, Err: err})
	case rec.ResponseErr != nil:
		c.observe(ctx, r, telemetry.Event{Type: telemetry.EventUnreadable, Attempt: rec.Attempt, State: rec.State, Err: rec.ResponseErr})
	}
	if err != nil {
		return storeRefusal(err)
	}
	return nil
}

// look is step 3 where it only reads.
func (c *core) look(ctx context.Context, r *request) (l looked, err error) {
	l.record, err = c.read(ctx, r)
	return l, err
}

// fromRecord answers a request from its record alone, if that is possible.
func (c *core) fromRecord(ctx context.Context, r *request, rec *driver.Record) (*Result, error) {
	res, err := r.judge(rec)
	if res != nil {
		c.observe(ctx, r, telemetry.Event{Type: telemetry.EventReplayed, Attempt: rec.Attempt, State: rec.State})
	}
	return res, err
}

// judge answers from the record alone, with a result to replay or with a refusal. If it returns
// neither, the request needs the key, or has it and may go on.
func (r *request) judge(rec *driver.Record) (*Result, error) {
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

// elsewhere answers a duplicate of a request that runs elsewhere, or lets it wait for that. rec may be
// older than the begin of that request. The error is errAgain if the key looked free.
func (c *core) elsewhere(ctx context.Context, r *request, rec driver.Record, wait func(context.Context, driver.KeyID) error) (*Result, error) {
	r.open = true // until the record says otherwise
	c.limit.leave(r)
	if rec.State != driver.StatePending {
		// The holder may have begun since, and a mismatch beats in-progress.
		rec, err := c.read(ctx, r)
		if err != nil {
			return nil, err
		}
		if res, err := c.fromRecord(ctx, r, &rec); res != nil || err != nil {
			c.endFirst(r, res)
			return res, err
		}
	}
	left := time.Until(r.giveUp)
	if left <= 0 {
		return nil, refuse(CodeInProgress, nil)
	}
	if err := c.waiters.enter(r); err != nil {
		return nil, err
	}
	defer c.waiters.leave(r)
	c.observe(ctx, r, telemetry.Event{Type: telemetry.EventWaited})
	err := c.inStep(ctx, telemetry.StepWait, r, left, func(ctx context.Context) (err error) {
		defer recovered("Wait", &err)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(c.work.closing, cancel)()
		return wait(ctx, r.id)
	})
	switch {
	case err == nil:
		return nil, errAgain
	case c.work.closing.Err() != nil:
		return nil, refuse(CodeUnavailable, errClosed)
	case ctx.Err() != nil || time.Until(r.giveUp) <= 0:
		return nil, refuse(CodeInProgress, nil)
	default:
		return nil, refuse(CodeUnavailable, err)
	}
}

// foreign returns nil if the domain of an attempt is retired. Otherwise our claim proves nothing about
// its holder, because our fence does not shut out its writes.
func (c *core) foreign(ctx context.Context, theirs driver.Fence) error {
	retired, err := c.callDomainRetired(ctx, theirs.Domain)
	if err != nil {
		return storeRefusal(err)
	}
	if !retired {
		return refuse(CodeInProgress, fmt.Errorf("%w: %v", ErrForeignDomain, theirs))
	}
	return nil
}

func (c *core) callDomainRetired(ctx context.Context, domain string) (retired bool, err error) {
	defer recovered("DomainRetired", &err)
	call, cancel := context.WithTimeout(ctx, c.cfg.storeTimeout)
	defer cancel()
	return c.store.DomainRetired(call, domain)
}

// settleRate is the slowest link that a settlement allows for, in bytes a second.
const settleRate = 256 << 10

// settleCall is a call of the store that settles.
type settleCall func(context.Context, driver.KeyID, driver.Settlement) (driver.SettleResult, error)

// callSettle calls the store. If the store cannot hold the response, callSettle settles without
// it, because the outcome stands. A large response takes longer on a slow link, so its call gets more than
// the usual time if the caller has as much left. Otherwise it could never be stored.
func (c *core) callSettle(ctx context.Context, r *request, s *driver.Settlement, left time.Duration, settle settleCall) (res driver.SettleResult, err error) {
	defer recovered("Settle", &err)
	timeout := c.cfg.storeTimeout
	if s.Response != nil {
		timeout += time.Duration(s.Response.Size()) * time.Second / settleRate
	}
	call, cancel := context.WithTimeout(ctx, min(timeout, max(left, c.cfg.storeTimeout)))
	defer cancel()
	res, err = settle(call, r.id, *s)
	if errors.Is(err, driver.ErrResponseInvalid) && s.Response != nil && !s.Response.Omitted {
		s.Response = &driver.Response{Status: s.Response.Status, Omitted: true, Span: s.Response.Span}
		return c.callSettle(ctx, r, s, left, settle)
	}
	return res, err
}
