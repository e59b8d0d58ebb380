package record

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// engines settle many records. There is one for each kind of server with locks.
type engines struct {
	c       *decisions
	b       *servers.Backends
	v       *verdict
	domains servers.Domains
	dry     bool // open no locker, because it may write

	mu      sync.Mutex
	retired map[string]bool
	settle  map[lockPlace]operate.Settle
	ends    []func()
}

func (c *decisions) engines(ctx context.Context, b *servers.Backends, v *verdict) (*engines, error) {
	domains, err := c.servers.Redis.Domains(ctx, b.Redis)
	return &engines{c: c, b: b, v: v, domains: domains, retired: map[string]bool{}, settle: map[lockPlace]operate.Settle{}}, err
}

// close gives everything back, in the reverse order.
func (e *engines) close() {
	for _, end := range slices.Backward(e.ends) {
		end()
	}
}

// of returns how to settle an attempt of a lock domain. Without the lock of its key no attempt is
// settled. One of a joined transaction has none, and is over unless a transaction holds the key.
func (e *engines) of(ctx context.Context, id driver.KeyID, domain string) (operate.Settle, error) {
	if domain == driver.JoinedDomain && e.b.Redis == nil {
		return e.joined, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	retired, known := e.retired[domain]
	if !known {
		var err error
		if retired, err = e.b.Store.DomainRetired(ctx, domain); err != nil {
			return nil, err
		}
		e.retired[domain] = retired
	}
	place, err := e.c.placeOf(e.b, e.domains.Of(id), domain, retired, e.v)
	if err != nil {
		return nil, err
	}
	if settle := e.settle[place]; settle != nil || e.dry {
		return settle, nil
	}
	locker, end, err := e.c.open(ctx, e.b, place, e.v)
	if err != nil {
		return nil, err
	}
	e.ends = append(e.ends, end)
	engine, end, err := newEngine(ctx, e.b.Store, locker)
	if err != nil {
		return nil, err
	}
	e.ends, e.settle[place] = append(e.ends, end), operate.UnderLock(engine)
	return e.settle[place], nil
}

// joined settles an attempt of a joined transaction.
func (e *engines) joined(ctx context.Context, id driver.KeyID, attempt driver.Attempt, answer *idem.Response, d driver.Decision, p *idem.Policy) error {
	if err := e.b.NotHeld(ctx, id); err != nil {
		if errors.Is(err, cli.ErrNotAcquired) {
			err = fmt.Errorf("%w: %w", driver.ErrLocked, err)
		}
		return err
	}
	res, err := settleWithoutLock(ctx, e.b.Store, id, attempt, answer, d, p.ResultTTL, p.KeyTTL)
	if err == nil && !res.Settled {
		err = idem.ErrNotOpen
	}
	return err
}
