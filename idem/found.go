package idem

import (
	"context"
	"errors"
	"fmt"
)

// found deals with a record, read under the lock, that did not let an attempt
// start. again says that it may do so now: the next one, or where the record is
// still open, one that starts over from it.
func (e *Engine) found(ctx context.Context, r *request, lease Lease) (res *Result, again bool, err error) {
	rec := &r.seen.Record
	r.open = true
	res, err = e.judge(r, rec)
	if err != nil {
		return nil, false, err
	}
	if res != nil {
		e.replayed(ctx, r)
		return res, false, nil
	}
	if !rec.State.Open() { // it changed since Begin looked: look again
		return nil, true, nil
	}
	if err := e.outlives(ctx, r, lease); err != nil {
		if rec.State == StateUnknown && errors.Is(err, ErrForeignDomain) {
			res, err = r.unknown(rec)
			return res, false, err
		}
		return nil, false, err
	}
	if rec.State == StatePending {
		e.observe(ctx, r, &Event{Type: EventInterrupted, Attempt: rec.Attempt, State: StatePending})
	}
	if r.Policy.InDoubt.again {
		return nil, true, nil
	}
	return e.resolve(ctx, r, lease)
}

// outlives returns nil where the lease proves that whoever made the open attempt
// last read is not at work any more: it is later in the same domain, or the
// other domain is known to be dead. Else it returns a refusal, with
// ErrForeignDomain where our lock proves nothing about the holder, and our fence
// shuts out none of what it has sent.
func (e *Engine) outlives(ctx context.Context, r *request, lease Lease) error {
	fence, theirs := lease.Fence(), r.seen.Record.Attempt.Fence
	if theirs.Domain == fence.Domain {
		if !theirs.Before(fence) {
			return refuse(CodeOwnershipLost, fmt.Errorf("idem: fence %v is behind the record's %v", fence, theirs))
		}
		return nil
	}
	call := r.within(ctx, e.cfg.storeTimeout)
	defer call.stop()
	retired, err := e.store.DomainRetired(call, theirs.Domain)
	if err != nil {
		return storeRefusal(err)
	}
	if !retired {
		return refuse(CodeInProgress, fmt.Errorf("%w: %v", ErrForeignDomain, theirs))
	}
	return nil
}
