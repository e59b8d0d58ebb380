package idem

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// beginRounds bounds how often begin starts over.
const beginRounds = 4

// errMarkedLost says that the store fell back between the look at a marker and Begin.
var errMarkedLost = errors.New("idem: the token store lost the marked attempt while this one began")

// begin is step 5. It starts an attempt, which then is r.record.Attempt, or it returns a stored
// outcome or a refusal. If no attempt started, begin has released the lock, or it undoes the
// Begin in the background under the lock.
func (e *Engine) begin(ctx context.Context, r *request, lease driver.Lease) (begun bool, res *Result, err error) {
	req := driver.BeginRequest{Kind: r.Policy.kind(), Route: r.Policy.Name, Fence: lease.Fence(), Nonce: r.nonce,
		Fingerprint: r.fingerprint, ResultTTL: r.Policy.ResultTTL, KeyTTL: r.Policy.KeyTTL}
	if res, answered, err := e.heed(ctx, r, lease); answered {
		lease.ReleaseInBackground()
		return false, res, err
	}
	// A second round follows after an attempt in doubt. Either that attempt was settled as not
	// applied, or the next attempt starts from it. More rounds follow only if other processes
	// decide at the same time.
	for range beginRounds {
		begun, err := e.callBegin(ctx, r, req)
		switch {
		case unreadable(err):
			e.observe(ctx, r, telemetry.Event{Type: telemetry.EventUnreadable, Err: err})
			lease.ReleaseInBackground()
			return false, nil, storeRefusal(err)
		case errors.Is(err, driver.ErrStoreLost), errors.Is(err, driver.ErrStaleFence):
			lease.ReleaseInBackground()
			if errors.Is(err, driver.ErrStaleFence) && e.lostFence(ctx, r, lease) {
				return false, nil, errAgain // under a lock of another domain
			}
			return false, nil, storeRefusal(err)
		case err != nil: // the store may have applied it, or may apply it later
			if markerOf(lease) != nil {
				mark(lease, &r.record) // as we saw it under the lock; the Abort may hide what was decided
			}
			e.undo(ctx, r, lease, req, err)
			return false, nil, storeRefusal(err)
		case begun && lease.Err() != nil:
			e.undo(ctx, r, lease, req, lease.Err())
			return false, nil, refuse(CodeOwnershipLost, lease.Err())
		case begun && beforeMarker(lease, r):
			e.undo(ctx, r, lease, req, errMarkedLost)
			return false, nil, refuse(CodeUnavailable, errMarkedLost)
		case begun:
			if err := e.markBegun(ctx, r, lease); err != nil {
				return false, nil, err
			}
			if !e.work.startHandler() {
				e.neverRuns(ctx, r, lease)
				return false, nil, refuse(CodeUnavailable, errClosed)
			}
			if r.first != nil {
				r.first.begun.Store(true)
			}
			e.observe(ctx, r, telemetry.Event{Type: telemetry.EventBegun, Attempt: r.record.Attempt, State: driver.StatePending})
			return true, nil, nil
		}
		res, again, err := e.found(ctx, r, lease)
		if !again {
			mark(lease, &r.record)
			lease.ReleaseInBackground()
			return false, res, err
		}
		req.RunAgainFrom, req.Fingerprint = nil, r.fingerprint
		// The key stays bound to its request. If the route does not run again in doubt, the
		// store has fallen back to an open attempt, and the next round settles it.
		if r.record.State.Open() && r.Policy.RunsAgain(r.record.Attempt) {
			from := r.record.Attempt
			req.RunAgainFrom, req.Fingerprint = &from, r.record.Fingerprint
		}
	}
	lease.ReleaseInBackground()
	return false, nil, refuse(CodeInProgress, errors.New("idem: the record kept changing under the lock"))
}

// callBegin calls the store. After an error r.record is as it was.
func (e *Engine) callBegin(ctx context.Context, r *request, req driver.BeginRequest) (begun bool, err error) {
	defer recovered("Begin", &err)
	call, cancel := context.WithTimeout(ctx, e.cfg.storeTimeout)
	defer cancel()
	res, err := e.store.Begin(call, r.id, req)
	e.intake.note(r.id, err)
	if err != nil {
		return false, err
	}
	r.record = res.Record
	r.repair = repairOf(&r.record)
	r.repair.Replaced = res.Replaced
	return res.Begun, nil
}

// repairOf returns the data for Settle to write a record anew.
func repairOf(rec *driver.Record) driver.Repair {
	return driver.Repair{Kind: rec.Kind, Route: rec.Route, Fingerprint: rec.Fingerprint, Started: rec.Started,
		ResultTTL: rec.ResultTTL, KeyTTL: rec.KeyTTL}
}

// found handles a record, read under the lock, that did not let an attempt start. again says
// that an attempt may start now. It is the next one, or it starts from the open one.
func (e *Engine) found(ctx context.Context, r *request, lease driver.Lease) (res *Result, again bool, err error) {
	rec := &r.record
	r.open = true
	res, err = e.judge(r, rec)
	if err != nil {
		return nil, false, err
	}
	if res != nil {
		e.replayed(ctx, r)
		return res, false, nil
	}
	if !rec.State.Open() { // it changed after Begin read it
		return nil, true, nil
	}
	if err := e.outlives(ctx, r, lease); err != nil {
		if rec.State == driver.StateUnknown && errors.Is(err, ErrForeignDomain) {
			return nil, false, r.unknown(rec, false) // until an operator retires the domain
		}
		return nil, false, err
	}
	if rec.State == driver.StatePending {
		e.observe(ctx, r, telemetry.Event{Type: telemetry.EventInterrupted, Attempt: rec.Attempt, State: driver.StatePending})
	}
	if r.Policy.RunsAgain(rec.Attempt) {
		return nil, true, nil
	}
	return e.resolve(ctx, r, lease)
}

// outlives returns nil if the lease proves that the holder of the open attempt is over. It
// proves this if the lease is later in the same domain, or if the other domain is retired.
// Otherwise outlives returns a refusal. The refusal wraps ErrForeignDomain if our lock proves
// nothing about the holder, because our fence does not shut out its writes.
func (e *Engine) outlives(ctx context.Context, r *request, lease driver.Lease) error {
	fence, theirs := lease.Fence(), r.record.Attempt.Fence
	if theirs.Domain == fence.Domain {
		if theirs.Before(fence) {
			return nil
		}
		renewed, err := e.renewDomain(ctx, r, theirs)
		if renewed { // the next lease proves nothing about the holder, as below
			return refuse(CodeInProgress, fmt.Errorf("%w: %v", ErrForeignDomain, theirs))
		}
		return withCause(refuse(CodeOwnershipLost, fmt.Errorf("idem: fence %v is not above the record's %v", fence, theirs)), err)
	}
	retired, err := e.callDomainRetired(ctx, theirs.Domain)
	if err != nil {
		return storeRefusal(err)
	}
	if !retired {
		return refuse(CodeInProgress, fmt.Errorf("%w: %v", ErrForeignDomain, theirs))
	}
	return nil
}

func (e *Engine) callDomainRetired(ctx context.Context, domain string) (retired bool, err error) {
	defer recovered("DomainRetired", &err)
	call, cancel := context.WithTimeout(ctx, e.cfg.storeTimeout)
	defer cancel()
	return e.store.DomainRetired(call, domain)
}
