package idem

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// This file has what follows a settlement that the store did not answer in time, and an attempt that
// has begun and must not run.

// settleInBackground is step 7 after the answer. told says that the client has the outcome.
func (m *lockMode) settleInBackground(ctx context.Context, run *lockRun, told bool) {
	first := run.first
	run.first = nil // its duplicates wait until the attempt is settled
	run.lease.handedOver = true
	m.inBackground(ctx, run.request, func(stop context.Context) {
		var result *Result
		defer func() { m.endWait(first, result) }()
		pause := backoff{first: 50 * time.Millisecond, most: time.Second}
		for {
			res, err := m.settleOnce(stop, run, patient)
			switch {
			case err == nil && res.Settled:
				m.ended(ctx, run.run, settledEvents[run.settlement.State], res.Record.State, nil)
				if run.settlement.State == driver.StateCompleted {
					result = run.repeatable(run.settlement.Response)
				}
				run.mark(&res.Record)
			case err == nil:
				m.superseded(ctx, run, told, &res.Record, nil)
				run.mark(&res.Record)
			case run.hopeless(err):
				m.abandon(ctx, run.run, told, err)
			case sleep(stop, pause.next()):
				continue
			default: // the lock outlives this engine, and ends with its session
				m.abandon(ctx, run.run, told, err)
				return
			}
			run.lease.ReleaseInBackground()
			return
		}
	})
}

// patient is for a call that no client waits for.
const patient = time.Hour

// errMisbehaves says that a store broke its contract in its answer to Settle.
var errMisbehaves = errors.New("idem: the token store breaks its contract")

// mostMisbehaviour is how many such answers end the tries to settle.
const mostMisbehaviour = 5

// hopeless reports whether another try cannot help. The store has given its final answer, or it
// keeps breaking its contract.
func (run *lockRun) hopeless(err error) bool {
	if errors.Is(err, errMisbehaves) {
		run.misbehaved++
	}
	return unreadable(err) || run.misbehaved >= mostMisbehaviour
}

// neverRan settles the attempt that has just begun as released, in the background and under
// the lock. It does not abort the attempt, because the marker may be there and would keep
// the key in doubt although nothing ran. An attempt that started from one in doubt becomes
// unknown, like that one.
func (m *lockMode) neverRan(ctx context.Context, r *request, lease *held, b begun) {
	r.open = true // until the attempt is settled, nothing runs unprotected
	m.settleInBackground(ctx, withoutHandler(r, lease, b), false)
}

// neverRuns is neverRan after Close, which leaves no time for work in the background. If the store
// does not answer, the next holder of the lock finds the attempt interrupted.
func (m *lockMode) neverRuns(ctx context.Context, r *request, lease *held, b begun) {
	run := withoutHandler(r, lease, b)
	res, err := m.settleOnce(ctx, run, m.cfg.settleTimeout)
	if err != nil {
		m.abandon(ctx, run.run, false, err)
		return
	}
	run.mark(&res.Record)
}

// withoutHandler is the run of an attempt that has begun and had no effect.
func withoutHandler(r *request, lease *held, b begun) *lockRun {
	run := &lockRun{run: newRun(r, b), lease: lease}
	o := outcomeNoEffect
	if run.startedFromDoubt() {
		o = outcomeInDoubt
	}
	run.decide(o, nil)
	return run
}
