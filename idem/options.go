package idem

import (
	"context"
	"errors"
	"time"
)

type config struct {
	observer      Observer
	storeTimeout  time.Duration
	lockTimeout   time.Duration
	settleTimeout time.Duration

	maxOpenPerScope int
	longRunning     time.Duration
}

func defaultConfig() config {
	return config{storeTimeout: time.Second, lockTimeout: 2 * time.Second, settleTimeout: 2 * time.Second, longRunning: time.Minute}
}

func (c *config) validate() error {
	if c.storeTimeout <= 0 || c.lockTimeout <= 0 || c.settleTimeout <= 0 {
		return errors.New("idem: time-outs have to be positive")
	}
	if c.longRunning < 0 {
		return errors.New("idem: the time after which a handler is reported is negative")
	}
	if c.maxOpenPerScope < 0 {
		return errors.New("idem: the limit of open executions is negative")
	}
	return nil
}

// Option configures an [Engine]. A nil Option is ignored.
type Option func(*config)

// WithObserver reports every event to fn. None by default.
func WithObserver(fn Observer) Option { return func(c *config) { c.observer = fn } }

// WithStoreTimeout bounds each call of the store. 1 s by default.
func WithStoreTimeout(d time.Duration) Option { return func(c *config) { c.storeTimeout = d } }

// WithLockTimeout bounds each call that takes or gives back a lock. 2 s by
// default.
func WithLockTimeout(d time.Duration) Option { return func(c *config) { c.lockTimeout = d } }

// WithSettleTimeout is for how long an answer is held back while its outcome
// cannot be stored; saving then goes on behind it. 2 s by default.
func WithSettleTimeout(d time.Duration) Option { return func(c *config) { c.settleTimeout = d } }

// WithMaxOpenExecutionsPerScope bounds how many executions one scope may have open in this
// process at once. A request beyond that is refused as [CodeTooManyOpen], with
// nothing locked and nothing begun, unless its key has an open attempt. Replays
// are never refused. 0, the default, is no limit.
//
// Choose it between two figures. What an honest scope needs is its requests per
// second at this instance times the seconds of one request, and some times that
// for bursts. What this instance has for all scopes is the locks of its locker
// (4,096 by default with ZooKeeper) and the memory of as many handlers. A quarter
// of the locks lets no scope take them all. All global keys are one scope.
func WithMaxOpenExecutionsPerScope(n int) Option { return func(c *config) { c.maxOpenPerScope = n } }

// WithLongRunning sets after what time a handler that still runs, and so holds its
// key, is reported as [EventLongRunning]; again after twice that time, four times,
// and so on. 1 min by default; 0 is never. See [Engine.Running] as well.
func WithLongRunning(d time.Duration) Option { return func(c *config) { c.longRunning = d } }

// observe reports an event of a request.
func (e *Engine) observe(ctx context.Context, r *request, ev Event) {
	if e.cfg.observer == nil {
		return
	}
	ev.Route, ev.KeyID = r.Policy.Name, r.id
	e.report(ctx, ev)
}

// report calls the observer. Its panics end here: they would leave a lock
// behind, or end the process in the background.
func (e *Engine) report(ctx context.Context, ev Event) {
	defer func() { _ = recover() }()
	e.cfg.observer(ctx, ev)
}

func (e *Engine) replayed(ctx context.Context, r *request) {
	e.observe(ctx, r, Event{Type: EventReplayed, Attempt: r.record.Attempt, State: r.record.State})
}

// refused reports a refusal; other errors are the handler's.
func (e *Engine) refused(ctx context.Context, p *Policy, id KeyID, err error) (Result, error) {
	if refusal, ok := errors.AsType[*Refusal](err); ok && e.cfg.observer != nil {
		ev := Event{Type: EventRefused, KeyID: id, Code: refusal.Code, Err: refusal.Err}
		if p != nil {
			ev.Route = p.Name
		}
		e.report(ctx, ev)
	}
	return Result{}, err
}

// ReportRefused reports to the observer a refusal that an adapter decided before
// Do: a missing key, a body over the limit.
func (e *Engine) ReportRefused(ctx context.Context, route string, r *Refusal) {
	if e.cfg.observer != nil {
		e.report(ctx, Event{Type: EventRefused, Route: route, Code: r.Code, Err: r.Err})
	}
}

// ReportUnprotected reports to the observer a request without a key that an adapter lets
// through to its handler, on a route where the key is optional.
func (e *Engine) ReportUnprotected(ctx context.Context, route string) {
	if e.cfg.observer != nil {
		e.report(ctx, Event{Type: EventUnprotected, Route: route})
	}
}

// storeRefusal says what an error of the store means to the client.
func storeRefusal(err error) *Refusal {
	switch {
	case errors.Is(err, ErrStoreLost):
		return refuse(CodeStoreLost, err)
	case errors.Is(err, ErrStaleFence):
		return refuse(CodeOwnershipLost, err)
	case errors.Is(err, ErrCorruptRecord): // there was an attempt, and nothing is known of it
		return refuse(CodeOutcomeUnknown, err)
	default: // a newer build's record too: an instance of that build can answer
		return refuse(CodeUnavailable, err)
	}
}

// asRefusal keeps an error that is a refusal already.
func asRefusal(code Code, err error) *Refusal {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	return refuse(code, err)
}

// withCause adds what else went wrong to a refusal, for logs.
func withCause(err, cause error) error {
	if r, ok := errors.AsType[*Refusal](err); ok && cause != nil {
		r.Err = errors.Join(r.Err, cause)
	}
	return err
}
