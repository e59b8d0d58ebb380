package payments

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// readyTimeout bounds a readiness check.
const readyTimeout = 2 * time.Second

// Readiness tells whether a payment with a fresh key would be served now. Anyone may ask, and a
// check asks the lock, the token store and the ledger. So one check runs at a time, and all who
// ask meanwhile get its answer. It is safe for concurrent use. Make it with [NewReadiness].
type Readiness struct {
	engine *idem.Engine
	ledger Ledger

	mu      sync.Mutex
	running *check // nil if none runs
}

// check is one look at the servers.
type check struct {
	done chan struct{} // closed at the end
	err  error         // valid then
}

// NewReadiness returns the readiness of an engine and a ledger.
func NewReadiness(e *idem.Engine, l Ledger) *Readiness { return &Readiness{engine: e, ledger: l} }

// Check returns nil if a payment would be served. Otherwise the error names the unreachable ones
// of lock, token store and ledger, or it is that of ctx.
func (r *Readiness) Check(ctx context.Context) error {
	r.mu.Lock()
	c, mine := r.running, r.running == nil
	if mine {
		c = &check{done: make(chan struct{})}
		r.running = c
	}
	r.mu.Unlock()
	if mine {
		r.look(context.WithoutCancel(ctx), c) // others wait for it
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// look runs a check.
func (r *Readiness) look(ctx context.Context, c *check) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	defer func() {
		r.mu.Lock()
		r.running = nil
		r.mu.Unlock()
		close(c.done)
	}()
	c.err = errors.Join(r.engine.Ping(ctx), r.ledger.Ping(ctx))
}
