package recipes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

var (
	errNotWriteLease = errors.New("zookeeper: downgrade: not a write lease of this lock")
	errDowngrading   = errors.New("zookeeper: downgrade: under way already")
)

// Downgrade turns a write lock into a read lock without a gap: no writer has the
// lock between them, and readers that queue right behind share it from then on.
// The returned lease has the fence of the old one, which those who wait behind
// have to be greater than.
//
// The old lease ends, as by Release. An error that wraps idem.ErrLeaseLost says
// that the lock was lost, before or meanwhile, and one that wraps
// idem.ErrUnavailable that ctx ended, or that ZooKeeper could not be asked: with
// either the caller has no lock any more, and what may be left of it is removed
// in the background. Any other error is about the lease: it is nil, a read lease,
// one of another lock or Client, or being downgraded already, and is left as it
// is.
//
// One transaction deletes the place of the writer and creates that of the reader
// with the same number, so it is at the same position in line. (A reader with a
// place of its own, as other libraries have it, would be behind the writers that
// wait.)
func (m *RWMutex) Downgrade(ctx context.Context, l *Lease) (*Lease, error) {
	if l == nil || l.place.Role != writing || l.place.lineup.path != m.ln.path || l.Table().Client != m.ln.c {
		return nil, fmt.Errorf("%w: %s", errNotWriteLease, m.ln.name)
	}
	lease, err := downgrade(ctx, l)
	if errors.Is(err, errDowngrading) {
		return nil, fmt.Errorf("%w: %s", err, m.ln.name)
	}
	if err != nil {
		l.ReleaseInBackground()
		return nil, fmt.Errorf("downgrade: %w", err)
	}
	return lease, nil
}

func downgrade(ctx context.Context, l *Lease) (*Lease, error) {
	t := l.Table()
	if err := t.AwaitUp(ctx); err != nil { // a connection that broke just now is waited for
		if over := l.Over(); over != nil {
			return nil, over
		}
		return nil, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
	}
	from := l.place
	pos, _ := line.Parse(reading + strings.TrimPrefix(from.Name, writing))
	to := &place{lineup: from.lineup, data: from.data, Position: pos}
	// No other znode has this name, because no other place had the old one, and each is
	// downgraded once at most.
	cl, err := t.Succeed(l.Lease, to.path())
	switch {
	case err != nil:
		return nil, err
	case cl == nil:
		return nil, errDowngrading
	}
	lease, err := cl.Acquire(ctx, held.Znode{
		Make:   func(a *held.Attempt) (string, int64, error) { return exchange(a, l, to) },
		Delete: to.deletion, Tag: to, Fence: func(int64) idem.Fence { return l.Fence() },
	})
	switch {
	case err != nil && t.Err() != nil:
		return nil, fmt.Errorf("%w: %w", idem.ErrLeaseLost, t.Err())
	case err != nil:
		return nil, err
	}
	return &Lease{lease, to}, nil
}

// exchange takes the old lease from its holder, replaces its znode by the new one, and sees
// to it that the old znode is gone whatever comes of that. Then it gives up the old claim,
// which wakes those who wait for it in this process.
func exchange(a *held.Attempt, l *Lease, to *place) (path string, czxid int64, err error) {
	removed := l.Take()
	if removed == nil {
		return "", 0, l.Over()
	}
	czxid, err = replace(a, l.place, to)
	var left error
	if err != nil {
		from, was := l.Where()
		left = a.Remove(from, was, false)
	}
	removed(left)
	return to.path(), czxid, err
}

// replace goes on until it is known what became of the exchange. Only its own session
// touches the two znodes. So after a lost reply there is the new one, or the old one, or
// somebody has meddled.
func replace(a *held.Attempt, from, to *place) (czxid int64, err error) {
	lost := fmt.Errorf("%w: its znode is gone", idem.ErrLeaseLost)
	for {
		if a.Abandoned() {
			return 0, held.ErrAbandoned
		}
		r := a.Write(&zk.DeleteRequest{Path: from.path(), Version: -1}, a.Ephemeral(to.path(), to.data))
		switch {
		case r.Outcome == session.Applied:
			return r.Zxid, nil
		case r.RefusedBy(zk.ErrNoNode):
			return 0, lost
		case r.Outcome == session.Refused:
			return 0, fmt.Errorf("%w: %w", idem.ErrUnavailable, r.Err)
		case r.Outcome == session.Unknown:
			n, err := a.Decide(to.path(), session.OfNode)
			if err == nil && n.Exists {
				return n.Czxid, nil
			}
			if err == nil {
				n, err = a.Decide(from.path(), session.OfNode)
			}
			if err == nil && !n.Exists {
				return 0, lost
			}
		}
		if err := a.Retry(); err != nil {
			return 0, fmt.Errorf("%w: %w", idem.ErrLeaseLost, err)
		}
	}
}
