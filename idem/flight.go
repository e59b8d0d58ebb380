package idem

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// flights are the requests on their way in this process, one per key ID, so
// that a duplicate need not leave the process to learn that it is one.
type flights struct {
	mu    sync.Mutex
	byKey map[KeyID]*flight
}

// flight is one of them. Its leader goes through the protocol; the others
// wait for it or are refused.
type flight struct {
	leader *request
	bound  atomic.Bool // the record is bound to the leader's fingerprint: Begin was acknowledged

	landed chan struct{} // guarded by flights.mu, made by who joins first; closed when the leader is through
	result *Result       // set before landed is closed; nil: look for yourself
}

func (f *flights) init() { f.byKey = make(map[KeyID]*flight) }

func (f *flights) get(id KeyID) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byKey[id]
}

// landing is closed when the leader of a flight is through: nil where it is
// already.
func (f *flights) landing(id KeyID, of *flight) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byKey[id] != of {
		return nil
	}
	if of.landed == nil {
		of.landed = make(chan struct{})
	}
	return of.landed
}

// begun says that the record is bound to this flight's request from here on.
func (f *flight) begun() {
	if f != nil {
		f.bound.Store(true)
	}
}

// differs reports whether a request is not the leader's.
func (f *flight) differs(r *request) bool {
	return f.leader.Policy.Kind != r.Policy.Kind || f.leader.fingerprint != r.fingerprint
}

// join is step 2. With neither result nor error there is nothing to join.
//
// A flight whose Begin has not been acknowledged proves nothing about a
// request that differs from it: the record may yet turn out to be bound to
// that other request. Such a one goes its own way.
func (e *Engine) join(ctx context.Context, r *request) (*Result, error) {
	f := e.flights.get(r.id)
	if f == nil || f == r.flight {
		return nil, nil
	}
	if f.differs(r) {
		if !f.bound.Load() {
			return nil, nil
		}
		return e.judge(r, &Record{State: StatePending, Kind: f.leader.Policy.Kind, Fingerprint: f.leader.fingerprint})
	}
	left := time.Until(r.giveUp)
	if left <= 0 {
		return nil, refuse(CodeInProgress, nil)
	}
	landed := e.flights.landing(r.id, f)
	if landed == nil {
		return nil, nil // what it has stored is there to be read
	}
	r.open = true // until the record says otherwise
	e.observe(ctx, r, &Event{Type: EventJoined})
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-landed:
		return f.result, nil
	case <-timer.C:
		return nil, refuse(CodeInProgress, nil)
	case <-ctx.Done():
		return nil, refuse(CodeUnavailable, ctx.Err())
	}
}

// lead makes the request the leader of its flight. It is false where a flight
// to be joined has come up meanwhile.
func (e *Engine) lead(r *request) bool {
	if r.flight != nil {
		return true
	}
	e.flights.mu.Lock()
	defer e.flights.mu.Unlock()
	if f := e.flights.byKey[r.id]; f != nil {
		// One that differs is not joined, and does not keep us from the lock.
		return f.differs(r)
	}
	r.own.leader = r
	r.flight = &r.own
	e.flights.byKey[r.id] = r.flight
	return true
}

// land ends the flight that the request leads, if any; a second call does
// nothing. result is for those who waited: only what is stored for good.
//
//go:noinline
func (e *Engine) land(r *request, result *Result) {
	f := r.flight
	r.flight = nil
	e.landFlight(r.id, f, result)
}

func (e *Engine) landFlight(id KeyID, f *flight, result *Result) {
	if f == nil {
		return
	}
	e.flights.mu.Lock()
	defer e.flights.mu.Unlock()
	delete(e.flights.byKey, id)
	if f.landed == nil {
		return
	}
	if result != nil {
		kept := *result // so that a result that nobody waits for can stay on the stack
		f.result = &kept
	}
	close(f.landed)
}
