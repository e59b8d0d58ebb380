package idem

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"
)

// firsts has the first request of each key in this process. A duplicate waits for it and does
// not leave the process.
type firsts struct {
	mu    sync.Mutex
	byKey map[KeyID]*first
	ended [1024]uint32 // firsts that have ended, by the start of the key ID
}

// endedOf counts the firsts of a key that have ended, and of some other keys. The caller
// holds mu.
func (f *firsts) endedOf(id KeyID) *uint32 {
	return &f.ended[binary.BigEndian.Uint16(id[:])%uint16(len(f.ended))]
}

// first is a request on its way through the protocol. Duplicates wait for it or are refused.
type first struct {
	request *request
	begun   atomic.Bool   // the store acknowledged Begin, so the record is bound to the request
	done    chan struct{} // closed when the request has ended
	result  *Result       // set before done is closed; nil: the duplicate reads the record
}

// differs reports whether r is another request than the first one.
func (f *first) differs(r *request) bool {
	return f.request.Policy.Kind != r.Policy.Kind || f.request.fingerprint != r.fingerprint
}

// waitForFirst is step 2. It returns neither a result nor an error if there is no request to
// wait for.
//
// If the Begin of the first request was not acknowledged, it proves nothing about a different
// request, because the record may turn out to be bound to that one. So a different request goes
// on by itself.
func (e *Engine) waitForFirst(ctx context.Context, r *request) (*Result, error) {
	e.firsts.mu.Lock()
	f := e.firsts.byKey[r.id]
	r.ended = *e.firsts.endedOf(r.id)
	e.firsts.mu.Unlock()
	if f == nil || f == r.first {
		return nil, nil
	}
	if f.differs(r) {
		if !f.begun.Load() {
			return nil, nil
		}
		return e.judge(r, &Record{State: StatePending, Kind: f.request.Policy.Kind, Fingerprint: f.request.fingerprint})
	}
	left := time.Until(r.giveUp)
	if left <= 0 {
		return nil, refuse(CodeInProgress, nil)
	}
	r.open = true // until the record says otherwise
	e.observe(ctx, r, Event{Type: EventJoined})
	err := e.inStep(ctx, StepWait, r, 0, func(ctx context.Context) error { return f.wait(ctx, left) })
	switch {
	case err == nil:
		return f.result, nil
	case ctx.Err() != nil:
		return nil, refuse(CodeUnavailable, ctx.Err())
	}
	return nil, refuse(CodeInProgress, nil)
}

// wait waits until the request has ended. After the time-out the error is
// context.DeadlineExceeded. A context with that time-out would cost each duplicate of a storm
// several allocations.
func (f *first) wait(ctx context.Context, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-f.done:
		return nil
	case <-timer.C:
		return context.DeadlineExceeded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// becomeFirst makes r the request for duplicates to wait for. It returns false if another
// request is that by now, and r has to wait for it. It also returns false if another first
// request may have ended since r began to read, because r has read an old record then.
func (e *Engine) becomeFirst(r *request) bool {
	if r.first != nil {
		return true
	}
	e.firsts.mu.Lock()
	defer e.firsts.mu.Unlock()
	if f := e.firsts.byKey[r.id]; f != nil {
		return f.differs(r) // r does not wait for a different request, and asks for the lock
	}
	if r.ended != *e.firsts.endedOf(r.id) {
		return false
	}
	r.first = &first{request: r, done: make(chan struct{})}
	e.firsts.byKey[r.id] = r.first
	return true
}

// endFirst ends the wait of the duplicates of r, if r is a first request. A second call
// does nothing. result is nil unless the store has acknowledged it.
func (e *Engine) endFirst(r *request, result *Result) {
	f := r.first
	r.first = nil
	e.endWait(f, result)
}

func (e *Engine) endWait(f *first, result *Result) {
	if f == nil {
		return
	}
	e.firsts.mu.Lock()
	delete(e.firsts.byKey, f.request.id)
	*e.firsts.endedOf(f.request.id)++
	e.firsts.mu.Unlock()
	f.result = result
	close(f.done)
}
