package idem

import (
	"context"
	"errors"
	"fmt"
)

// Facts that [Engine.Resolve] and [Engine.Decide] report beside ErrLocked.
var (
	// ErrNotOpen says that a key has no open attempt: there is nothing to decide.
	ErrNotOpen = errors.New("idem: no open attempt")
	// ErrForeignDomain says that an attempt ran under a lock of another domain,
	// of which our lock proves nothing, and that this domain is not retired.
	ErrForeignDomain = errors.New("idem: the attempt belongs to another lock domain")
)

// Resolve settles the open attempt of a key as the next request with the key
// would: by the resolver that the policy asks, under a lease of its own, so that a holder
// that still runs is not disturbed. It returns the record as it is then. A
// resolver that cannot tell, or none, leaves the attempt unknown; that is no
// error.
//
// The error wraps ErrLocked where somebody holds the lock, ErrNotOpen,
// ErrForeignDomain, ErrLeaseLost, ErrStoreLost or ErrUnavailable. Unless it is
// ErrLeaseLost or ErrUnavailable, nothing was decided.
//
// The policy's Name and Scope are not looked at. ctx bounds what is done before the resolver is asked; from then on it goes
// to its end.
func (e *Engine) Resolve(ctx context.Context, id KeyID, p *Policy) (Record, error) {
	return e.settleOpen(ctx, id, p, func(ctx context.Context, r *request, lease Lease) error {
		_, err := e.settleDoubt(ctx, r, lease)
		return err
	})
}

// Decide settles an attempt by the word of d.By: it took effect, and repeats get
// the response; or it did not and never will. The attempt is the one that d.By
// has looked at; the zero Attempt is whichever is open. Where another one is open
// the error is ErrNotOpen. A holder that still runs is not overruled: its lock is
// taken first. Errors are those of
// [Engine.Resolve], ErrResponseInvalid, and one for a resolution that is
// StillUnknown.
func (e *Engine) Decide(ctx context.Context, id KeyID, attempt Attempt, resolution Resolution, d Decision, p *Policy) (Record, error) {
	if resolution.verdict == stillUnknown {
		return Record{}, errors.New("idem: decide: neither applied nor not applied")
	}
	if resolution.response != nil {
		if _, err := resolution.response.AppendBinary(nil); err != nil {
			return Record{}, fmt.Errorf("%w: %w", ErrResponseInvalid, err)
		}
	}
	return e.settleOpen(ctx, id, p, func(ctx context.Context, r *request, lease Lease) error {
		if open := r.record.Attempt; attempt != (Attempt{}) && attempt != open {
			return fmt.Errorf("%w: attempt %d is over, %d is open", ErrNotOpen, attempt.Number, open.Number)
		}
		settled, err := e.settleAs(ctx, r, lease, resolution, d, nil)
		if err == nil && !settled { // by a holder that had lost its lock, and finished
			err = fmt.Errorf("%w: it has become %v meanwhile", ErrNotOpen, r.record.State)
		}
		return err
	})
}

// settleOpen takes the lock of a key and has its open attempt settled.
func (e *Engine) settleOpen(ctx context.Context, id KeyID, p *Policy, settle func(context.Context, *request, Lease) error) (Record, error) {
	if p == nil {
		return Record{}, errors.New("idem: no policy")
	}
	p, err := p.complete()
	if err != nil {
		return Record{}, err
	}
	if !e.work.add() {
		return Record{}, fmt.Errorf("%w: %w", ErrUnavailable, errClosed)
	}
	defer e.work.done()
	r := &request{Operation: Operation{Policy: p}, id: id}
	rec := &r.record
	// Of what the store has lost, a marker may tell: it is seen under the lock.
	if err := e.readOpen(ctx, r); err != nil && (used(rec.State) || !errors.Is(err, ErrNotOpen)) {
		return *rec, err
	}
	lease, err := e.lock(ctx, r)
	if err != nil {
		return *rec, err
	}
	ctx = context.WithoutCancel(ctx)
	defer e.giveBack(ctx, r, lease)
	if _, _, err := e.heed(ctx, r, lease); err != nil {
		return *rec, err
	}
	if err := e.readOpen(ctx, r); err != nil { // what was read before the lock may be over
		return *rec, err
	}
	if err := e.outlives(ctx, r, lease); err != nil {
		return *rec, err
	}
	if rec.State == StatePending {
		e.observe(ctx, r, Event{Type: EventInterrupted, Attempt: rec.Attempt, State: StatePending})
	}
	err = settle(ctx, r, lease)
	return *rec, err
}

// readOpen reads the record, and is ErrNotOpen where there is nothing to decide.
func (e *Engine) readOpen(ctx context.Context, r *request) error {
	if err := e.read(ctx, r); err != nil {
		return err
	}
	rec := &r.record
	r.Policy.Name = rec.Route
	if !rec.State.Open() {
		return fmt.Errorf("%w: it is %v", ErrNotOpen, rec.State)
	}
	return nil
}

// giveBack releases a lock and has it leave a marker of what the record says.
func (e *Engine) giveBack(ctx context.Context, r *request, lease Lease) {
	mark(lease, &r.record)
	e.release(ctx, r, lease)
}
