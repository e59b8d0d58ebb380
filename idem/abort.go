package idem

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// maxUndoing is how many Begins one engine undoes at the same moment. It bounds the goroutines and
// the calls of the store while the store does not answer.
const maxUndoing = 1024

// errTooManyUndone says that a Begin without an answer is left as it is.
var errTooManyUndone = errors.New("idem: too many Begins without an answer are being undone already")

// undoing counts the Begins that are being undone.
type undoing struct{ n atomic.Int64 }

// enter counts one more, and returns false if there are too many.
func (u *undoing) enter() bool {
	if u.n.Add(1) <= maxUndoing {
		return true
	}
	u.n.Add(-1)
	return false
}

func (u *undoing) leave() { u.n.Add(-1) }

// undo takes back a Begin without an answer, or one whose attempt must not run, in the
// background. cause says why.
//
// The lock makes this tidy, and it is not what makes it safe. No handler ran under the attempt. If the
// Begin was applied, or is applied later, the next holder finds a pending attempt of an earlier
// fence, as after a crash. So undo holds the lock for the settle time-out at most. It then gives the lock
// back and goes on without it. A store that takes no writes for an hour so holds no locks.
func (m *lockMode) undo(ctx context.Context, r *request, lease *held, req driver.BeginRequest, cause error) {
	lease.handedOver = true
	if !m.undoing.enter() {
		m.observe(ctx, r, telemetry.Event{Type: telemetry.EventSettleAbandoned, Err: fmt.Errorf("%w: %w", errTooManyUndone, cause)})
		lease.ReleaseInBackground()
		return
	}
	// The request has its body, and the undo may take long.
	r = &request{Operation: Operation{Policy: r.Policy}, id: r.id}
	m.work.inBackground(func(stop context.Context) {
		defer m.undoing.leave()
		defer lease.ReleaseInBackground() // a second call does nothing
		if errors.Is(cause, driver.ErrNoWrites) && m.leftNoTrace(stop, r, req) {
			return
		}
		m.undoUnder(stop, r, lease, func(held bool) error { return m.abort(stop, r, lease, held, req) })
	}, func(err error) { m.observe(ctx, r, telemetry.Event{Type: telemetry.EventSettleAbandoned, Err: err}) })
}

// undoUnder calls abort until it succeeds or ctx ends. It gives the lock back when the settle time-out is over, and
// tells abort whether the lock is still held.
func (m *lockMode) undoUnder(ctx context.Context, r *request, lease *held, abort func(held bool) error) {
	held, giveBack := true, time.Now().Add(m.cfg.settleTimeout)
	pause := backoff{first: 20 * time.Millisecond, most: time.Second}
	for {
		err := abort(held)
		if err == nil {
			m.observe(ctx, r, telemetry.Event{Type: telemetry.EventBeginAborted})
			return
		}
		next := pause.next()
		if held {
			next = min(next, max(0, time.Until(giveBack)))
		}
		if unreadable(err) || !sleep(ctx, next) {
			m.observe(ctx, r, telemetry.Event{Type: telemetry.EventSettleAbandoned, Err: err})
			return
		}
		if held && time.Until(giveBack) <= 0 {
			held, pause = false, backoff{first: time.Second, most: 10 * time.Second}
			lease.ReleaseInBackground()
		}
	}
}

// leftNoTrace reports whether there is nothing to undo. The store has said that it takes no
// writes, so this copy of the Begin had no effect. A client library may have sent an earlier one, whose answer
// was lost. A read tells, and a store without memory still answers it.
func (m *lockMode) leftNoTrace(ctx context.Context, r *request, req driver.BeginRequest) bool {
	call, cancel := context.WithTimeout(ctx, m.cfg.storeTimeout)
	defer cancel()
	rec, err := m.store.Get(call, r.id)
	return err == nil && rec.Attempt.Nonce != req.Nonce
}

// abort undoes a Begin once. Without the lock of the attempt, the next holder may have marked it as
// unknown before the Abort came. Nothing ran under the attempt, so abort releases it. It stays
// unknown if it started from one in doubt, or if there is a marker, because it may have started
// from a record that is older than the marker.
func (m *lockMode) abort(ctx context.Context, r *request, lease *held, held bool, req driver.BeginRequest) (err error) {
	defer recovered("Abort", &err)
	call, cancel := context.WithTimeout(ctx, m.cfg.storeTimeout)
	defer cancel()
	err = m.store.Abort(call, r.id, req)
	ours := held && lease.Err() == nil && lease.Fence() == req.Fence
	if err != nil || ours || req.RunAgainFrom != nil || markerOf(lease) != nil {
		return err
	}
	call, cancel = context.WithTimeout(ctx, 2*m.cfg.storeTimeout) // for two calls
	defer cancel()
	rec, err := m.store.Get(call, r.id)
	if err != nil || rec.State != driver.StateUnknown || rec.Attempt.Fence != req.Fence || rec.Attempt.Nonce != req.Nonce {
		return err
	}
	_, err = m.store.Settle(call, r.id, driver.Settlement{Attempt: rec.Attempt, ID: req.Nonce, State: driver.StateReleased,
		ResultTTL: r.Policy.ResultTTL, KeyTTL: r.Policy.KeyTTL, Decision: driver.Decision{By: "engine", Reason: "never ran"}})
	return err
}
