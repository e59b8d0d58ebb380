package idem

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// firsts has what goes on with each key in this process.
type firsts struct {
	mu    sync.Mutex
	byKey map[driver.KeyID]place
}

// place is a key in use. A first request ends with the record changed. Whoever was reading the
// record meanwhile may have an old one. Only readers of the same key can, and only they read again, because
// requests that make each other read again keep an overload alive for ever.
type place struct {
	first   *first // nil without one
	readers int    // requests that read the record
	ended   uint32 // first requests that have ended while there were readers
}

// set changes the place of a key. A place that nobody uses is forgotten. The caller holds mu.
func (f *firsts) set(id driver.KeyID, p place) {
	if p.first == nil && p.readers == 0 {
		delete(f.byKey, id)
		return
	}
	f.byKey[id] = p
}

// stopReading takes r from the readers of its key, and reports whether a first request may have ended
// since r began to read. The caller holds mu.
func (f *firsts) stopReading(r *request) (old bool) {
	if !r.reading {
		return false
	}
	r.reading = false
	p := f.byKey[r.id]
	old = p.ended != r.ended
	p.readers--
	f.set(r.id, p)
	return old
}

// first is a request on its way through the protocol. Duplicates wait for it or are refused.
type first struct {
	request *request
	looking atomic.Pointer[look] // set while the request looks at the record, and may be answered by it
	begun   atomic.Bool          // the store acknowledged Begin, so the record is bound to the request
	done    chan struct{}        // closed when the request has ended
	result  *Result              // set before done is closed; nil: the duplicate reads the record
}

// look is a look at the record that may begin an attempt at the same time.
type look struct{ over chan struct{} }

// startLook makes r the first request, as becomeFirst does, and lets its duplicates wait for its look at the record, whatever
// their policy says of waiting. Otherwise duplicates of a completed request would be refused while one of them looks, or is
// about to look, so nobody may see r before its look.
func (c *core) startLook(r *request) bool { return c.makeFirst(r, &look{make(chan struct{})}) }

// endLook says that the record does not answer the request. Its duplicates wait for its outcome, or are refused. The
// look of a request that is answered ends with the request.
func (c *core) endLook(r *request) {
	if r.first == nil {
		return
	}
	if l := r.first.looking.Swap(nil); l != nil {
		close(l.over)
	}
}

// waitForLook waits until f has looked at the record. It returns the result of f if the record has answered it. The
// error is a refusal.
func (c *core) waitForLook(ctx context.Context, r *request, f *first, l *look) (*Result, error) {
	select {
	case <-l.over:
		return nil, nil
	case <-f.done:
		r.onlyReads = true // if there is no result, the duplicates look at the same time, not one after the other
		return f.result, nil
	case <-ctx.Done():
		return nil, refuse(CodeUnavailable, ctx.Err())
	case <-c.work.closing.Done():
		return nil, refuse(CodeUnavailable, errClosed)
	}
}

// differs reports whether r is another request than the first one.
func (f *first) differs(r *request) bool {
	return f.request.Policy.kind() != r.Policy.kind() || f.request.fingerprint != r.fingerprint
}

// waitForFirst is step 2. It returns neither a result nor an error if there is no request to
// wait for. Then r counts as a reader of the record.
//
// If the Begin of the first request was not acknowledged, it proves nothing about a different
// request, because the record may turn out to be bound to that one. So a different request goes
// on by itself.
func (c *core) waitForFirst(ctx context.Context, r *request) (*Result, error) {
	for {
		f, differs := c.startReading(r)
		switch {
		case f == nil:
			return nil, nil
		case differs:
			return r.judge(&driver.Record{State: driver.StatePending, Kind: f.request.Policy.kind(), Fingerprint: f.request.fingerprint})
		}
		if l := f.looking.Load(); l != nil {
			if res, err := c.waitForLook(ctx, r, f, l); res != nil || err != nil {
				return res, err
			}
			continue
		}
		left := time.Until(r.giveUp)
		if left <= 0 {
			return nil, refuse(CodeInProgress, nil)
		}
		r.open = true // until the record says otherwise
		if err := c.waiters.enter(r); err != nil {
			return nil, err
		}
		c.observe(ctx, r, telemetry.Event{Type: telemetry.EventJoined})
		err := c.inStep(ctx, telemetry.StepWait, r, 0, func(ctx context.Context) error { return f.wait(ctx, c.work.closing, left) })
		c.waiters.leave(r)
		switch {
		case err == nil && f.result != nil:
			return f.result, nil
		case err == nil: // another request may be the first one by now
		case errors.Is(err, errClosed):
			return nil, refuse(CodeUnavailable, errClosed)
		case ctx.Err() != nil:
			return nil, refuse(CodeUnavailable, ctx.Err())
		default:
			return nil, refuse(CodeInProgress, nil)
		}
	}
}

// startReading returns the request that r has to wait for. Without one, r counts as a reader. If r
// differs from the request, it must not wait.
func (c *core) startReading(r *request) (f *first, differs bool) {
	c.firsts.mu.Lock()
	defer c.firsts.mu.Unlock()
	c.firsts.stopReading(r)
	p := c.firsts.byKey[r.id]
	if p.first != nil && p.first != r.first {
		if differs = p.first.differs(r); !differs || p.first.begun.Load() {
			return p.first, differs
		}
	}
	p.readers++
	r.reading, r.ended = true, p.ended
	c.firsts.set(r.id, p)
	return nil, false
}

// stopReading ends the reading of a request that is answered.
func (c *core) stopReading(r *request) {
	if r.reading {
		c.firsts.mu.Lock()
		defer c.firsts.mu.Unlock()
		c.firsts.stopReading(r)
	}
}

// wait waits until the request has ended. After the time-out the error is
// context.DeadlineExceeded, and after closing has ended it is errClosed. A context with that time-out would
// cost each duplicate of a storm several allocations.
func (f *first) wait(ctx, closing context.Context, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-f.done:
		return nil
	case <-timer.C:
		return context.DeadlineExceeded
	case <-ctx.Done():
		return ctx.Err()
	case <-closing.Done():
		return errClosed
	}
}

// becomeFirst makes r the request for duplicates to wait for. It returns false if another
// request is that by now, and r has to wait for it. It also returns false if another first
// request has ended since r began to read, because r has read an old record then.
func (c *core) becomeFirst(r *request) bool { return c.makeFirst(r, nil) }

func (c *core) makeFirst(r *request, l *look) bool {
	c.firsts.mu.Lock()
	defer c.firsts.mu.Unlock()
	old := c.firsts.stopReading(r)
	if r.first != nil {
		if l != nil {
			r.first.looking.Store(l)
		}
		return true
	}
	p := c.firsts.byKey[r.id]
	switch {
	case p.first != nil:
		return p.first.differs(r) // r does not wait for a different request, and asks for the lock
	case old:
		return false
	}
	r.first = &first{request: r, done: make(chan struct{})}
	r.first.looking.Store(l)
	p.first = r.first
	c.firsts.set(r.id, p)
	return true
}

// endFirst ends the wait of the duplicates of r, if r is a first request. A second call
// does nothing. result is nil unless the store has acknowledged it.
func (c *core) endFirst(r *request, result *Result) {
	f := r.first
	r.first = nil
	c.endWait(f, result)
}

func (c *core) endWait(f *first, result *Result) {
	if f == nil {
		return
	}
	c.firsts.mu.Lock()
	p := c.firsts.byKey[f.request.id]
	p.first = nil
	p.ended++
	c.firsts.set(f.request.id, p)
	c.firsts.mu.Unlock()
	f.result = result
	close(f.done)
}
