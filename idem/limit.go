package idem

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// openLimit bounds how many executions a scope has open in this process. So the keys of one
// tenant cannot use up all locks and memory. An execution is open from before the lock call, or from its
// begin where one call does both, until its outcome is stored, in the background too. openLimit remembers only scopes with an
// open execution.
type openLimit struct {
	most int // per scope; 0 is no limit

	mu   sync.Mutex
	open map[string]int // by scope; an entry is never 0
}

// enter counts a request before it asks for its lock, or refuses it. It never refuses a request
// if the key has an open attempt. Such a request brings the attempt to its end, or tells its
// client of it.
func (l *openLimit) enter(r *request) error {
	if l.most == 0 || r.counted {
		return nil
	}
	return l.add(r, r.open || r.first == nil) // a request that is not first differs from a running one
}

// add counts a request, or refuses it unless its key is known to have an open attempt.
func (l *openLimit) add(r *request, known bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.open[r.Scope]; n >= l.most && !known {
		return refuse(CodeTooManyOpen, fmt.Errorf("idem: scope %q has %d executions open", r.Scope, n))
	}
	if l.open == nil {
		l.open = make(map[string]int)
	}
	l.open[r.Scope]++
	r.counted = true
	return nil
}

// full reports whether enter would refuse a request now.
func (l *openLimit) full(r *request) bool {
	if l.most == 0 || r.counted {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[r.Scope] >= l.most
}

// leave undoes enter. It does nothing for a request that is not counted.
func (l *openLimit) leave(r *request) {
	if r.counted {
		r.counted = false
		l.end(r.Scope)
	}
}

func (l *openLimit) end(scope string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[scope]--; l.open[scope] == 0 {
		delete(l.open, scope)
	}
}

// inBackground runs fn in the background of a request. The execution stays open until fn
// returns.
func (c *core) inBackground(ctx context.Context, r *request, fn func(stop context.Context)) {
	scope, counted := r.Scope, r.counted
	r.counted = false
	c.work.holdHandler()
	c.work.inBackground(func(stop context.Context) {
		defer c.work.endHandler()
		if counted {
			defer c.limit.end(scope)
		}
		fn(stop)
	}, func(err error) { c.observe(ctx, r, telemetry.Event{Type: telemetry.EventSettleAbandoned, Err: err}) })
}

// Defaults of [WithMaxWaiting].
const (
	defaultMaxWaitingPerKey   = 100
	defaultMaxWaitingPerScope = 1000
)

var errTooManyWait = errors.New("idem: too many duplicates wait already")

// waiters bounds the duplicates that wait, because each of them keeps the body of its request.
type waiters struct {
	mostPerKey, mostPerScope int

	mu      sync.Mutex
	byKey   map[driver.KeyID]int // an entry is never 0
	byScope map[string]int       // an entry is never 0
}

// enter counts a request that is about to wait, or refuses it as in progress.
func (w *waiters) enter(r *request) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byKey[r.id] >= w.mostPerKey || w.byScope[r.Scope] >= w.mostPerScope {
		return refuse(CodeInProgress, errTooManyWait)
	}
	w.byKey[r.id]++
	w.byScope[r.Scope]++
	return nil
}

func (w *waiters) leave(r *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byKey[r.id]--; w.byKey[r.id] == 0 {
		delete(w.byKey, r.id)
	}
	if w.byScope[r.Scope]--; w.byScope[r.Scope] == 0 {
		delete(w.byScope, r.Scope)
	}
}

const (
	// intakeParts is in how many parts the engine divides the keys, to notice which part of a store
	// takes no writes. tokenstore/redis divides them in the same way, so a primary that refuses closes
	// no part of another one. Another store is asked once for each part.
	intakeParts = 64
	// intakePause is the time between a refused Begin and the next one that may try.
	intakePause = 100 * time.Millisecond
)

// intake remembers which parts of the store take no writes. A request for a new attempt there is refused
// before it takes a lock. One request per pause tries again.
type intake struct {
	closed [intakeParts]atomic.Pointer[refusedBegin] // nil while the part takes writes
}

// refusedBegin is the answer to the last try.
type refusedBegin struct {
	err  error
	next time.Time // when another Begin may try
}

// refuses returns the error of the last try if a Begin of the key would be refused now.
func (i *intake) refuses(id driver.KeyID) error {
	part := &i.closed[int(id[0])%intakeParts]
	last := part.Load()
	if last == nil {
		return nil
	}
	if now := time.Now(); !now.Before(last.next) && part.CompareAndSwap(last, &refusedBegin{last.err, now.Add(intakePause)}) {
		return nil // the others wait for this one
	}
	return fmt.Errorf("idem: the store refused a moment ago: %w", last.err)
}

// note records the answer to a Begin.
func (i *intake) note(id driver.KeyID, err error) {
	part := &i.closed[int(id[0])%intakeParts]
	switch {
	case errors.Is(err, driver.ErrNoWrites):
		part.Store(&refusedBegin{err, time.Now().Add(intakePause)})
	case err == nil && part.Load() != nil:
		part.Store(nil)
	}
}
