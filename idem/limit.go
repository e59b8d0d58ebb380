package idem

import (
	"context"
	"fmt"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// openLimit bounds how many executions a scope has open in this process. So the keys of one
// tenant cannot use up all locks and memory. An execution is open from before the lock call
// until its outcome is stored, in the background too. openLimit remembers only scopes with an
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
	known := r.open || r.first == nil // a request that is not first differs from a running one
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
