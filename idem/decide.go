package idem

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// Facts that [Engine.Resolve] and [Engine.Decide] report beside ErrLocked.
var (
	// ErrNotOpen says that a key has no open attempt, so there is nothing to decide.
	ErrNotOpen = errors.New("idem: no open attempt")
	// ErrForeignDomain says that an attempt ran under a lock of another domain, and that this
	// domain is not retired. Our lock proves nothing about that attempt.
	ErrForeignDomain = errors.New("idem: the attempt belongs to another lock domain")
)

// Resolve settles the open attempt of a key as the next request with the key would. It asks the
// resolver of the policy under a lease of its own, so it does not disturb a holder that still
// runs. It returns the record as it is afterwards. Without an answer the attempt stays unknown,
// and the error is nil.
//
// The error wraps ErrLocked if another owner holds the lock, ErrNotOpen, ErrForeignDomain,
// ErrLeaseLost, ErrStoreLost or ErrUnavailable. Nothing was decided, except perhaps with
// ErrLeaseLost or ErrUnavailable.
//
// Resolve ignores Name and Scope of the policy. ctx bounds the work before the resolver is
// asked. After that Resolve goes to its end.
func (e *Engine) Resolve(ctx context.Context, id driver.KeyID, p *Policy) (driver.Record, error) {
	return e.settleOpen(ctx, id, p, func(ctx context.Context, r *request, claim claim, rec driver.Record) (driver.Record, error) {
		rec, _, err := e.settleDoubt(ctx, r, claim, rec)
		return rec, err
	})
}

// Decide settles an attempt as the operator d.By says. Either it took effect and repeats get
// the response, or it did not and never will. Name the attempt that d.By has looked at. The
// zero Attempt stands for the open one. If another attempt is open, the error is ErrNotOpen.
// Decide takes the lock first, so it does not overrule a holder that still runs. Errors are
// those of [Engine.Resolve], ErrResponseInvalid, and one for StillUnknown.
func (e *Engine) Decide(ctx context.Context, id driver.KeyID, attempt driver.Attempt, resolution Resolution, d driver.Decision, p *Policy) (driver.Record, error) {
	if resolution.verdict == stillUnknown {
		return driver.Record{}, errors.New("idem: decide: neither applied nor not applied")
	}
	if resolution.response != nil {
		if _, err := resolution.response.AppendBinary(nil); err != nil {
			return driver.Record{}, fmt.Errorf("%w: %w", driver.ErrResponseInvalid, err)
		}
	}
	return e.settleOpen(ctx, id, p, func(ctx context.Context, r *request, claim claim, rec driver.Record) (driver.Record, error) {
		if open := rec.Attempt; attempt != (driver.Attempt{}) && attempt != open {
			return rec, fmt.Errorf("%w: attempt %d is over, %d is open", ErrNotOpen, attempt.Number, open.Number)
		}
		res, err := e.settleAs(ctx, r, claim, &rec, resolution, d, nil)
		if err == nil && !res.Settled { // a holder without its lock has finished
			err = fmt.Errorf("%w: it has become %v meanwhile", ErrNotOpen, res.Record.State)
		}
		return res.Record, err
	})
}

// settleOpen takes a key and settles its open attempt with settle, which returns the new record.
func (e *Engine) settleOpen(ctx context.Context, id driver.KeyID, p *Policy, settle func(context.Context, *request, claim, driver.Record) (driver.Record, error)) (driver.Record, error) {
	if p == nil {
		return driver.Record{}, errors.New("idem: no policy")
	}
	p, err := p.complete()
	if err != nil {
		return driver.Record{}, err
	}
	if !e.work.add() {
		return driver.Record{}, fmt.Errorf("%w: %w", driver.ErrUnavailable, errClosed)
	}
	defer e.work.done()
	r := &request{Operation: Operation{Policy: p}, id: id}
	// If the store has lost the record, a marker may tell of it. We see the marker with the claim.
	rec, err := e.read(ctx, r)
	if err == nil {
		err = r.wantsOpen(&rec)
	}
	if err != nil && (used(rec.State) || !errors.Is(err, ErrNotOpen)) {
		return rec, err
	}
	claim, err := e.mode.claim(ctx, r)
	if err != nil {
		return rec, err
	}
	ctx = context.WithoutCancel(ctx)
	defer func() { claim.giveBack(ctx, r, &rec) }()
	if rec, err = claim.record(ctx, r); err != nil { // it may have changed before the claim
		return rec, err
	}
	if err := r.wantsOpen(&rec); err != nil {
		return rec, err
	}
	if err := claim.outlives(ctx, r, rec.Attempt); err != nil {
		return rec, err
	}
	if rec.State == driver.StatePending {
		e.observe(ctx, r, telemetry.Event{Type: telemetry.EventInterrupted, Attempt: rec.Attempt, State: driver.StatePending})
	}
	rec, err = settle(ctx, r, claim, rec)
	return rec, err
}

// wantsOpen returns ErrNotOpen if there is nothing to decide. The request is of the route of the record
// from then on.
func (r *request) wantsOpen(rec *driver.Record) error {
	r.Policy.Name = rec.Route
	if !rec.State.Open() {
		return fmt.Errorf("%w: it is %v", ErrNotOpen, rec.State)
	}
	return nil
}
