package recipes

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// lineup is a line of places: a znode below which those who want the same thing queue up.
// Each has an ephemeral sequential znode there, its place. The servers number the places in
// the order in which they were taken. A place is never taken in front of another, and never
// moves.
type lineup struct {
	c    *held.Client
	name string // as given
	path string // with the chroot
	data []byte // of the parent, if it has to be made
	uses atomic.Uint64

	// agreed, if not nil, says whether a place that was just taken may stay, by
	// what the parent is then.
	agreed func(ctx context.Context, l *Lease) error
}

func newLineup(root zookeeper.Root, path string) *lineup {
	c, prefix := root.Base()
	return &lineup{c: c, name: prefix + path, path: c.Chroot + prefix + path}
}

func (ln *lineup) check() error { return held.CheckPath("path", ln.name, false) }

// owned is the data of a place.
func (ln *lineup) owned() []byte { return ln.c.Owned(ln.name).Encode() }

// acquire takes a place and waits for its turn. If it loses its place, it takes another
// one, until ctx ends or the client's retries are used up.
func (ln *lineup) acquire(ctx context.Context, role string, data []byte, r rule) (*Lease, error) {
	if err := ln.check(); err != nil {
		return nil, err
	}
	for retries := ln.c.Retries(); ; {
		lease, err := ln.try(ctx, role, data, func(l *Lease) error { return l.awaitTurn(ctx, r) })
		if err == nil || session.Refusal(err) || !errors.Is(err, idem.ErrUnavailable) && !errors.Is(err, idem.ErrLeaseLost) {
			return lease, err
		}
		if !retries.Wait(ctx) {
			return nil, fmt.Errorf("%w: %s not acquired: %w", idem.ErrUnavailable, ln.name, errors.Join(context.Cause(ctx), err))
		}
	}
}

// tryAcquire takes a place and gives it back unless it is its turn at once.
func (ln *lineup) tryAcquire(ctx context.Context, role string, data []byte, r rule) (*Lease, error) {
	if err := ln.check(); err != nil {
		return nil, err
	}
	return ln.try(ctx, role, data, func(l *Lease) error { return l.turnAtOnce(ctx, r) })
}

// try takes a place and gives it back if it does not fit.
func (ln *lineup) try(ctx context.Context, role string, data []byte, fit func(*Lease) error) (*Lease, error) {
	t, err := ln.c.Table()
	if err != nil {
		return nil, err
	}
	lease, err := ln.enqueue(ctx, t, role, data)
	if err != nil {
		return nil, err
	}
	if ln.agreed != nil {
		err = ln.agreed(ctx, lease)
	}
	if err == nil {
		err = fit(lease)
	}
	if err != nil {
		lease.ReleaseInBackground()
		return nil, err
	}
	return lease, nil
}

// roll reads a line, for callers that have no place in it: as it was when they asked, or
// later.
func (ln *lineup) roll(ctx context.Context) (*held.Table, []line.Position, error) {
	if err := ln.check(); err != nil {
		return nil, nil, err
	}
	t, err := ln.c.Table()
	if err != nil {
		return nil, nil, err
	}
	if err := t.Barrier(ctx); err != nil { // other clients may have come a moment ago
		return nil, nil, err
	}
	n, err := t.DecideFor(ctx, ln.path, session.OfChildren)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", idem.ErrUnavailable, ln.name, err)
	}
	return t, line.Sort(n.Names), nil
}

// placeAt reads the znode of a place, for callers that only want to know.
func (ln *lineup) placeAt(ctx context.Context, t *held.Table, pos line.Position) (session.Hint, error) {
	n, err := session.Within(ctx, t.Session, func() (session.Hint, error) {
		return t.Look(ln.path+"/"+pos.Name, session.OfNode)
	})
	if err != nil {
		return session.Hint{}, fmt.Errorf("%w: %s: %w", idem.ErrUnavailable, ln.name, err)
	}
	return n, nil
}
