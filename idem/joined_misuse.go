package idem

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// This file has what becomes of a joined transaction that its handler ended or misused.

// escaped records an outcome as unknown, because the handler ended the transaction by itself, or
// never took it and answered with success. What it wrote may be there without a record.
func (e *Engine) escaped(ctx context.Context, run *run, cause error) (*Result, error) {
	e.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventMisused, Attempt: run.settlement.Attempt, Err: cause})
	var resp *driver.Response
	if run.err == nil {
		resp = (*driver.Response)(&run.response)
	}
	run.decide(outcomeInDoubt, resp)
	settled, err := e.settleAlone(ctx, run)
	switch {
	case err != nil: // duplicates in this process wait until it is stored
		e.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventSettleDelayed, Attempt: run.settlement.Attempt, State: driver.StateUnknown, Err: err})
		e.escapedInBackground(ctx, run)
	case settled:
		e.ended(ctx, run, telemetry.EventUnknown, cause)
	default:
		e.ended(ctx, run, telemetry.EventSuperseded, cause)
	}
	return nil, run.outcomeUnknown(false, cause)
}

// escapedInBackground goes on to record an outcome as unknown after the answer, with the key held.
func (e *Engine) escapedInBackground(ctx context.Context, run *run) {
	first, tx := run.first, run.tx
	run.first, run.tx = nil, nil // duplicates wait until the outcome is recorded
	e.inBackground(ctx, run.request, func(stop context.Context) {
		defer e.endWait(first, nil)
		defer tx.Release(ctx)
		pause := backoff{first: 50 * time.Millisecond, most: time.Second}
		for {
			_, err := e.callSettle(stop, run.request, &run.settlement, patient)
			switch {
			case err == nil:
				e.ended(ctx, run, telemetry.EventUnknown, nil)
				return
			case unreadable(err), !sleep(stop, pause.next()):
				e.abandon(ctx, run, false, err)
				return
			}
		}
	})
}

// misused tells the developer of a handler that answered with success over a failed statement. The
// transaction was rolled back, with all that the handler wrote there.
func (e *Engine) misused(ctx context.Context, run *run, cause error) (*Result, error) {
	e.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventMisused, Attempt: run.settlement.Attempt, Err: cause})
	e.ended(ctx, run, telemetry.EventReleased, cause)
	return nil, refuse(CodeUnavailable, cause)
}
