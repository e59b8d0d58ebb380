package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
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
	if l == nil || l.place == nil || l.place.role != writing || l.place.line.path != m.ln.path || l.s.client != m.ln.c {
		return nil, fmt.Errorf("%w: %s", errNotWriteLease, m.ln.name)
	}
	lease, err := l.s.downgrade(ctx, l)
	if errors.Is(err, errDowngrading) {
		return nil, fmt.Errorf("%w: %s", err, m.ln.name)
	}
	if err != nil {
		l.ReleaseInBackground()
		return nil, fmt.Errorf("downgrade: %w", err)
	}
	return lease, nil
}

func (s *locks) downgrade(ctx context.Context, l *Lease) (*Lease, error) {
	if err := s.AwaitUp(ctx); err != nil {
		if over := l.over(); over != nil {
			return nil, over
		}
		return nil, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
	}
	d := &downgrade{from: l}
	path := d.path()
	sl, err := d.claim(path)
	if err != nil {
		return nil, err
	}
	pos, _ := parsePosition(lastElement(path))
	p := &place{line: l.place.line, data: l.place.data, position: pos}
	lease, err := s.attempt(ctx, &attempt{slot: sl, place: p, create: d.run})
	if err != nil && s.Err() != nil {
		return nil, fmt.Errorf("%w: %w", idem.ErrLeaseLost, s.Err())
	}
	if err != nil {
		return nil, err
	}
	lease.fence = l.fence // nobody else has seen the lease yet
	return lease, nil
}

// downgrade is the exchange of a writer's znode for a reader's.
type downgrade struct{ from *Lease }

// path is that of the new znode.
func (d *downgrade) path() string {
	p := d.from.place
	return p.line.path + "/" + reading + strings.TrimPrefix(p.name, writing)
}

// claim makes a slot for the new znode, whatever the limit on slots says: the old
// one is about to go. No other znode has this name, as no other place had the
// old one and each is downgraded once at most.
func (d *downgrade) claim(path string) (*slot, error) {
	s, l := d.from.s, d.from
	s.mu.Lock()
	defer s.mu.Unlock()
	if over := l.over(); over != nil {
		return nil, over
	}
	if s.slots[path] != nil {
		return nil, errDowngrading
	}
	sl := &slot{path: path, freed: make(chan struct{})}
	s.slots[path] = sl
	return sl, nil
}

// run takes the old lease from its holder, makes the exchange, and sees to it
// that the old znode is gone whatever comes of that. Then it gives up the old
// slot, which wakes those who wait for it in this process.
func (d *downgrade) run(a *attempt) (czxid int64, err error) {
	s, l := a.s, d.from
	s.mu.Lock()
	if l.slot.phase != holding || !l.finish(nil) {
		s.mu.Unlock()
		return 0, l.over()
	}
	l.slot.phase = releasing // by nobody else
	s.mu.Unlock()

	czxid, err = d.exchange(a)
	if err != nil {
		l.goneErr = s.remove(l.slot.path, l.czxid, false)
	}
	s.free(l.slot)
	close(l.gone)
	return czxid, err
}

// exchange goes on until it is known what became of it. Only its own session
// touches the two znodes, so that after a lost reply there is the new one, or
// the old one, or somebody has meddled.
func (d *downgrade) exchange(a *attempt) (czxid int64, err error) {
	s, from, to := a.s, d.from.slot.path, d.path()
	lost := fmt.Errorf("%w: its znode is gone", idem.ErrLeaseLost)
	for {
		if a.gone() {
			return 0, idem.ErrUnavailable // nobody reads this
		}
		r := s.Write(
			&zk.DeleteRequest{Path: from, Version: -1},
			&zk.CreateRequest{Path: to, Data: a.place.data, Acl: s.cfg.ACL, Flags: zk.FlagEphemeral},
		)
		switch {
		case r.Outcome == session.Applied:
			return r.Zxid, nil
		case r.RefusedBy(zk.ErrNoNode):
			return 0, lost
		case r.Outcome == session.Refused:
			return 0, fmt.Errorf("%w: %w", idem.ErrUnavailable, r.Err)
		case r.Outcome == session.Unknown:
			n, err := s.Decide(to, session.OfNode)
			if err == nil && n.Exists {
				return n.Czxid, nil
			}
			if err == nil {
				n, err = s.Decide(from, session.OfNode)
			}
			if err == nil && !n.Exists {
				return 0, lost
			}
		}
		if err := s.Retry(); err != nil {
			return 0, fmt.Errorf("%w: %w", idem.ErrLeaseLost, err)
		}
	}
}
