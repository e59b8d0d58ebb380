package recipes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/listener"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// lineup is a line of places. It is a znode with one ephemeral sequential child for each caller.
// The servers number the places in the order in which they were taken. No place is ever taken
// in front of another, and no place moves.
type lineup struct {
	c         *held.Client
	name      string // as given
	path      string // with the chroot
	data      []byte // of the parent, if it has to be made
	candidate string // the name in an election, "" otherwise
	listeners []*listener.Mailbox[Event]
	uses      atomic.Uint64

	// agreed, if not nil, checks the parent after a place was taken. If it fails, the place
	// is given back.
	agreed func(ctx context.Context, l *Lease) error
}

func newLineup(in zookeeper.Space, path string, opts ...Option) (*lineup, error) {
	c, name, full, err := held.Locate(in, path)
	if err != nil {
		return nil, err
	}
	ln := &lineup{c: c, name: name, path: full}
	for _, opt := range opts {
		if opt != nil {
			opt(ln)
		}
	}
	return ln, nil
}

// occupant is the data of a place.
type occupant struct {
	held.Owner

	Candidate string `json:"candidate,omitempty"`
}

func (ln *lineup) occupant() []byte {
	data, err := json.Marshal(occupant{ln.c.Owned(ln.name), ln.candidate})
	if err != nil {
		panic("zookeeper: strings and ints always marshal: " + err.Error())
	}
	return data
}

// acquire takes a place and waits for its turn. If it loses its place it takes another one,
// until ctx ends or the client's retries are used up.
func (ln *lineup) acquire(ctx context.Context, role string, r rule) (*Lease, error) {
	for retries := ln.c.Retries(); ; {
		lease, err := ln.try(ctx, role, func(l *Lease) error { return l.awaitTurn(ctx, r) })
		if err == nil {
			ln.tell(lease)
			return lease, nil
		}
		if session.Refusal(err) || !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrLeaseLost) {
			return nil, err
		}
		if !retries.Wait(ctx) {
			return nil, fmt.Errorf("%w: %s not acquired: %w", driver.ErrUnavailable, ln.name, errors.Join(context.Cause(ctx), err))
		}
	}
}

// tryAcquire takes a place and gives it back unless its turn comes at once.
func (ln *lineup) tryAcquire(ctx context.Context, role string, r rule) (*Lease, error) {
	lease, err := ln.try(ctx, role, func(l *Lease) error { return l.turnAtOnce(ctx, r) })
	if err == nil {
		ln.tell(lease)
	}
	return lease, err
}

// try takes a place and gives it back if it does not fit.
func (ln *lineup) try(ctx context.Context, role string, fit func(*Lease) error) (*Lease, error) {
	t, err := ln.c.Table()
	if err != nil {
		return nil, err
	}
	lease, err := ln.enqueue(ctx, t, role, ln.occupant())
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

// roll reads the line for callers without a place in it. It shows every place that was taken
// before the call and is still there.
func (ln *lineup) roll(ctx context.Context) (*held.Table, []line.Position, error) {
	t, err := ln.c.Table()
	if err != nil {
		return nil, nil, err
	}
	if err := t.Session.Pulse.Barrier(ctx); err != nil { // other clients may have come a moment ago
		return nil, nil, err
	}
	n, err := t.Session.Reads.DecideFor(ctx, ln.path, session.OfChildren)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %w", driver.ErrUnavailable, ln.name, err)
	}
	return t, line.Sort(n.Names), nil
}
