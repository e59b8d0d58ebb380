package idem

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// work counts what an engine has under way, so that Close can wait for it:
// requests, and what goes on behind their answers.
type work struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{}      // closed when n is 0 after Close
	ctx    context.Context    // of the background; ends when Close gives up
	stop   context.CancelFunc // ends ctx
}

func (w *work) init() {
	w.idle = make(chan struct{})
	w.ctx, w.stop = context.WithCancel(context.Background())
}

// add is false once the engine is closed.
func (w *work) add() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.n++
	return true
}

// hold adds to work that is still counted.
func (w *work) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n++
}

func (w *work) done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n--
	if w.closed && w.n == 0 {
		close(w.idle)
	}
}

// behind runs fn behind the answer of a request that is still counted.
func (w *work) behind(fn func(ctx context.Context)) {
	w.hold() // also after Close: it waits for this request, and so for fn
	go func() {
		defer w.done()
		fn(w.ctx)
	}()
}

// Close refuses new operations as unavailable and waits until those that run
// have been settled and saved, or ctx ends. The error says how many are left;
// then the locks must not be given back by closing their session: they protect
// what still runs. Saving in the background is given up.
func (e *Engine) Close(ctx context.Context) error {
	w := &e.work
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		if w.n == 0 {
			close(w.idle)
		}
	}
	w.mu.Unlock()
	defer w.stop()
	defer e.running.close()
	select {
	case <-w.idle:
		return nil
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		return fmt.Errorf("idem: %d operations still run: %w", w.n, ctx.Err())
	}
}

// save is step 7 with its retries. After an error saving goes on behind the
// answer, with the lock held and duplicates in this process refused, until the
// store has answered or the engine gives up. It is given up at once where trying
// again cannot help.
func (e *Engine) save(ctx context.Context, run *run) (settled bool, err error) {
	s := &run.settlement
	giveUp := time.Now().Add(e.cfg.saveTimeout)
	pause := backoff{first: 20 * time.Millisecond, most: time.Second}
	for {
		settled, err := e.trySave(ctx, run)
		if err == nil {
			return settled, nil
		}
		if run.hopeless(err) {
			run.told = !run.lost()
			e.abandon(ctx, run, run.told, err)
			run.lease.ReleaseInBackground()
			return false, err
		}
		left := time.Until(giveUp)
		if left <= 0 || !sleep(e.work.ctx, min(pause.next(), left)) {
			e.observe(ctx, run.request, &Event{Type: EventSettleDelayed, Attempt: run.settlement.Attempt, State: s.State, Err: err})
			run.told = !run.lost()
			e.saveBehind(ctx, run)
			return false, err
		}
	}
}

// trySave settles once. A record that the store has lost, or that has fallen back
// to what was before the attempt, is repaired.
func (e *Engine) trySave(ctx context.Context, run *run) (settled bool, err error) {
	s := &run.settlement
	s.Repair, s.LeaseTrusted = &run.restore, !run.lost()
	if settled, err = e.settleOrOmit(ctx, run.request, s); run.seen.Repaired {
		e.observe(ctx, run.request, &Event{Type: EventRepaired, Attempt: s.Attempt, State: run.seen.Record.State})
	}
	switch rec := &run.seen.Record; {
	case errors.Is(err, ErrResponseInvalid):
		err = fmt.Errorf("%w: it refuses a settlement without a response: %w", errMisbehaves, err)
	case err == nil && !settled && rec.State.Open() && rec.Attempt == s.Attempt:
		err = fmt.Errorf("%w: it left an open attempt as it was", errMisbehaves)
	}
	return settled, err
}

// errMisbehaves says that a store broke its contract in its answer to Settle.
var errMisbehaves = errors.New("idem: the token store breaks its contract")

// mostMisbehaviour is how many such answers end the saving of an outcome.
const mostMisbehaviour = 5

// hopeless reports whether trying to save again cannot help: the store has had its
// last word, or goes on breaking its contract.
func (run *run) hopeless(err error) bool {
	if errors.Is(err, errMisbehaves) {
		run.misbehaved++
	}
	return unreadable(err) || run.misbehaved >= mostMisbehaviour
}

// abandon reports that an outcome will not be saved. told says that the client has
// it, or is about to.
func (e *Engine) abandon(ctx context.Context, run *run, told bool, err error) {
	s := &run.settlement
	e.observe(ctx, run.request, &Event{Type: EventSettleAbandoned, Attempt: s.Attempt, State: s.State, Err: err})
	if told && s.State == StateCompleted {
		e.observe(ctx, run.request, &Event{Type: EventUnstored, Attempt: s.Attempt, Err: err})
	}
}

// settleOrOmit settles, without the response where the store cannot hold that: the
// outcome stands all the same.
func (e *Engine) settleOrOmit(ctx context.Context, r *request, s *Settlement) (settled bool, err error) {
	settled, err = e.callSettle(ctx, r, s)
	if errors.Is(err, ErrResponseInvalid) && s.Response != nil {
		s.Response = &Response{Status: s.Response.Status, Omitted: true}
		settled, err = e.callSettle(ctx, r, s)
	}
	return settled, err
}

func (e *Engine) callSettle(ctx context.Context, r *request, s *Settlement) (settled bool, err error) {
	call := r.within(ctx, e.cfg.storeTimeout)
	defer call.stop()
	err = r.tookSettled(e.store.Settle(call, r.id, *s))
	return r.seen.Settled, err
}

// tookSettled keeps what a store answered to Settle.
//
//go:noinline
func (r *request) tookSettled(s SettleResult, err error) error {
	r.seen = s
	return err
}

func (e *Engine) saveBehind(ctx context.Context, run *run) {
	s := &run.settlement
	told, flight := run.told, run.flight
	run.flight = nil // lands when saved
	r := run.request
	e.inBackground(r, func(stop context.Context) {
		var result *Result
		defer func() { e.landFlight(r.id, flight, result) }()
		pause := backoff{first: 50 * time.Millisecond, most: time.Second}
		for {
			settled, err := e.trySave(stop, run)
			if err == nil {
				if !settled {
					e.setAside(ctx, run, told, nil)
				} else {
					e.ended(ctx, run, settledEvents[outcomeOf(s.State)], nil)
					if s.State == StateCompleted {
						result = run.repeatable(s.Response)
					}
				}
				run.mark()
				run.lease.ReleaseInBackground()
				return
			}
			if run.hopeless(err) {
				e.abandon(ctx, run, told, err)
				run.lease.ReleaseInBackground()
				return
			}
			if !sleep(stop, pause.next()) {
				// The lock is left to its session: it outlives this engine.
				e.abandon(ctx, run, told, err)
				return
			}
		}
	})
}

func outcomeOf(s State) outcome {
	switch s {
	case StateCompleted:
		return outcomeCompleted
	case StateReleased:
		return outcomeNoEffect
	default:
		return outcomeInDoubt
	}
}

// abortBehind undoes a Begin that was not answered, or came too late, with the
// lock held until that is acknowledged, or the record turns out to be unreadable:
// a Begin that is still on its way is refused by such a record.
//
//go:noinline
func (e *Engine) abortBehind(ctx context.Context, r *request, lease Lease, req BeginRequest) {
	e.inBackground(r, func(stop context.Context) {
		pause := backoff{first: 20 * time.Millisecond, most: time.Second}
		for {
			call := withTimeout(stop, e.cfg.storeTimeout)
			err := e.store.Abort(call, r.id, req)
			call.stop()
			if err == nil && lease.Err() != nil {
				err = e.disown(stop, r, req)
			}
			if err == nil {
				e.observe(ctx, r, &Event{Type: EventBeginAborted})
				lease.ReleaseInBackground()
				return
			}
			final := unreadable(err)
			if final || !sleep(stop, pause.next()) {
				e.observe(ctx, r, &Event{Type: EventSettleAbandoned, Err: err})
				if final {
					lease.ReleaseInBackground()
				}
				return
			}
		}
	})
}

// disown releases the attempt of a Begin whose Abort came after the next holder
// had marked it unknown: nothing ran under it. One that started over from an
// attempt in doubt stays unknown, as that one is.
func (e *Engine) disown(ctx context.Context, r *request, req BeginRequest) error {
	if req.RunAgainFrom != nil {
		return nil
	}
	call := withTimeout(ctx, e.cfg.storeTimeout)
	defer call.stop()
	rec, err := e.store.Get(call, r.id)
	if err != nil || rec.State != StateUnknown || rec.Attempt.Fence != req.Fence || rec.Attempt.Nonce != req.Nonce {
		return err
	}
	_, err = e.store.Settle(call, r.id, Settlement{Attempt: rec.Attempt, ID: req.Nonce, State: StateReleased,
		ResultTTL: r.Policy.ResultTTL, KeyTTL: r.Policy.KeyTTL, Decision: Decision{By: "engine", Reason: "never ran"}})
	return err
}

// backoff doubles a pause up to a limit.
type backoff struct{ first, most time.Duration }

func (b *backoff) next() time.Duration {
	d := b.first
	b.first = min(2*b.first, b.most)
	return d
}

// sleep is false where ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
