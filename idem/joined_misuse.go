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
func (m *joinedMode) escaped(ctx context.Context, run *joinedRun, cause error) (*Result, error) {
	m.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventMisused, Attempt: run.settlement.Attempt, Err: cause})
	var resp *driver.Response
	if run.err == nil {
		resp = (*driver.Response)(&run.response)
	}
	run.decide(outcomeInDoubt, resp)
	settled, err := m.settleAlone(ctx, run)
	switch {
	case err != nil: // duplicates in this process wait until it is stored
		m.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventSettleDelayed, Attempt: run.settlement.Attempt, State: driver.StateUnknown, Err: err})
		m.escapedInBackground(ctx, run)
	case settled.Settled:
		m.ended(ctx, run.run, telemetry.EventUnknown, settled.Record.State, cause)
	default:
		m.ended(ctx, run.run, telemetry.EventSuperseded, settled.Record.State, cause)
	}
	return nil, run.outcomeUnknown(false, cause)
}

// escapedInBackground goes on to record an outcome as unknown after the answer, with the key held.
func (m *joinedMode) escapedInBackground(ctx context.Context, run *joinedRun) {
	first, tx := run.first, run.tx
	run.first, run.tx = nil, nil // duplicates wait until the outcome is recorded
	m.inBackground(ctx, run.request, func(stop context.Context) {
		defer m.endWait(first, nil)
		defer tx.Release(ctx)
		pause := backoff{first: 50 * time.Millisecond, most: time.Second}
		for {
			res, err := m.callSettle(stop, run.request, &run.settlement, patient, m.store.Settle)
			switch {
			case err == nil:
				m.ended(ctx, run.run, telemetry.EventUnknown, res.Record.State, nil)
				return
			case unreadable(err), !sleep(stop, pause.next()):
				m.abandon(ctx, run.run, false, err)
				return
			}
		}
	})
}

// misused tells the developer of a handler that answered with success over a failed statement. The
// transaction was rolled back, with all that the handler wrote there.
func (m *joinedMode) misused(ctx context.Context, run *joinedRun, cause error) (*Result, error) {
	m.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventMisused, Attempt: run.settlement.Attempt, Err: cause})
	m.ended(ctx, run.run, telemetry.EventReleased, run.repair.Replaced.State, cause)
	return nil, refuse(CodeUnavailable, cause)
}
