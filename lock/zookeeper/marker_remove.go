package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// MarkerRemoval selects the markers for [Locker.RemoveMarkers] to remove.
type MarkerRemoval struct {
	// Retention is how long a marker is kept after its last write, by the ensemble's
	// clock. It has to be longer than any client repeats a request. Required.
	Retention time.Duration

	// Settled reports whether the outcome of a marked operation has been settled since.
	// Its marker is then not needed any more. The pass asks about each marker of an
	// unknown outcome that is older than the retention, from several goroutines at once.
	// If Settled fails, the marker stays and the pass goes on. Without Settled such
	// markers stay for ever.
	Settled func(ctx context.Context, id driver.KeyID, m *driver.Marker) (bool, error)

	// PerSecond bounds how many markers are read in a second. The default is 2000.
	PerSecond int
}

// MarkerStats counts the markers of a pass. Each marker that was read counts as Looked, and
// as one of Removed, Kept and Unknown.
type MarkerStats struct {
	Looked  int
	Removed int
	Kept    int // too young, locked at that moment, changed meanwhile, or not permitted
	Unknown int // old enough, but the outcome is not known yet
}

// lookers is how many markers are read, and removed, at the same time.
const lookers = 64

// RemoveMarkers goes once through all markers, including the markers of other instances.
// It removes markers older than the retention. The application has to call it, with and
// without [WithDurableMarkers], best in one elected instance. Several passes at once do no
// harm. A pass may end half way.
//
// RemoveMarkers removes a marker as an attempt with MarkOnRelease(nil) does. It takes the
// lock of the key, and compares the marker under the lock. So it never removes the marker of
// a running attempt, nor a newer marker. A request at that very moment finds the key locked.
//
// It returns the statistics so far also with an error. The error is the one of ctx,
// driver.ErrUnavailable, or, after a complete pass, an error of Settled. A removal under way
// goes on in the background.
func (l *Locker) RemoveMarkers(ctx context.Context, opts MarkerRemoval) (MarkerStats, error) {
	if opts.Retention <= 0 {
		return MarkerStats{}, errors.New("zookeeper: MarkerRemoval without a Retention")
	}
	if opts.PerSecond < 0 {
		return MarkerStats{}, errors.New("zookeeper: MarkerRemoval with a negative PerSecond")
	}
	defaultTo(&opts.PerSecond, 2000)
	r := &removal{c: l.c, opts: opts}
	s, err := l.c.usable()
	if err == nil {
		r.now, err = serverNow(ctx, s)
	}
	if err == nil {
		err = r.run(ctx)
	}
	switch {
	case err == nil:
		err = r.failed
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case !errors.Is(err, driver.ErrUnavailable):
		err = fmt.Errorf("%w: remove markers: %w", driver.ErrUnavailable, err)
	}
	return r.stats, err
}

// serverNow is the time of the ensemble's clock, in milliseconds. The ensemble stamps every
// write, so serverNow makes a write and reads its stamp.
func serverNow(ctx context.Context, s *locks) (ms int64, err error) {
	if err := s.session.Pulse.Barrier(ctx); err != nil {
		return 0, err
	}
	n, err := s.session.Reads.DecideFor(ctx, s.session.Member(), session.OfNode)
	if err == nil && !n.Exists {
		err = session.ErrNoMember
	}
	return n.Mtime, err
}

// removal is one pass.
type removal struct {
	c    *Client
	opts MarkerRemoval
	now  int64 // of the ensemble's clock, when the pass began
	pace *time.Ticker

	mu     sync.Mutex
	stats  MarkerStats
	failed error // the last one of Settled
}

// count adds one to a figure of the statistics.
func (r *removal) count(n *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
}

// run makes the pass. It takes the parents in random order. So even if every pass is cut
// short, each marker gets its turn in the end.
func (r *removal) run(ctx context.Context) error {
	r.pace = time.NewTicker(max(time.Second/time.Duration(r.opts.PerSecond), 1))
	defer r.pace.Stop()
	_, names, err := r.list(ctx, r.c.cfg.rootPath())
	if err != nil {
		return err
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		if len(name) != 3 {
			continue // no parent of locks
		}
		if err := r.below(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for the next step. A ticker does not make up for lost time.
func (r *removal) wait(ctx context.Context) error {
	select {
	case <-r.pace.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// list returns the names below a path, and the session of the read. It waits for its step
// too, because many parents may be empty.
func (r *removal) list(ctx context.Context, path string) (*locks, []string, error) {
	if err := r.wait(ctx); err != nil {
		return nil, nil, err
	}
	s, err := r.c.usable()
	if err != nil {
		return nil, nil, err
	}
	n, err := s.session.Reads.DecideFor(ctx, path, session.OfChildren)
	return s, n.Names, err
}

// below goes through the markers below one of the parents.
func (r *removal) below(ctx context.Context, parent string) error {
	s, names, err := r.list(ctx, r.c.cfg.rootPath()+"/"+parent)
	if err != nil {
		return err
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(lookers)
	for _, name := range names {
		id, err := driver.ParseKeyID(parent + name)
		if err != nil || r.c.cfg.lockPath(id) != r.c.cfg.rootPath()+"/"+parent+"/"+name {
			continue // no lock or marker
		}
		if r.wait(inner) != nil {
			break
		}
		group.Go(func() error { return r.look(inner, s, id) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// look reads the znode at the path of a key, and removes it if it is a marker to remove.
func (r *removal) look(ctx context.Context, s *locks, id driver.KeyID) error {
	path := r.c.cfg.lockPath(id)
	n, err := s.session.Reads.DecideFor(ctx, path, session.OfNode)
	switch {
	case errors.Is(err, ErrNotPermitted):
		s.log.Warn("zookeeper: the servers do not permit to read this znode", "error", err)
		return nil
	case err != nil:
		return err
	case !n.Exists, n.Session != 0: // gone, or a lock
		return nil
	}
	m := parseMarker(n.Data)
	if m == nil {
		s.log.Warn("zookeeper: this znode keeps its key from being locked", "error", notMarker(path))
		return nil
	}
	r.count(&r.stats.Looked)
	if n.Children > 0 || r.now-n.Mtime < r.opts.Retention.Milliseconds() { // locked, or young
		r.count(&r.stats.Kept)
		return nil
	}
	if !r.settled(ctx, id, m) {
		r.count(&r.stats.Unknown)
		return nil
	}
	removed, err := r.remove(ctx, s, path, n)
	if removed {
		r.count(&r.stats.Removed)
	} else {
		r.count(&r.stats.Kept)
	}
	return err
}

// settled reports whether the outcome of a marked attempt is known.
func (r *removal) settled(ctx context.Context, id driver.KeyID, m *driver.Marker) bool {
	if m.State == driver.StateCompleted || r.opts.Settled == nil {
		return m.State == driver.StateCompleted
	}
	settled, err := r.opts.Settled(ctx, id, m)
	if err == nil {
		return settled
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = err
	return false
}

// remove removes the judged marker, if it is still the same and its key is not locked.
//
// It is not enough to name the version of the data in the delete. The marker may have been
// removed meanwhile, and its path may hold a lock or another marker with the same version,
// namely 0. So remove takes the lock and compares the marker under it. It asks for the lock
// below the marker first, because a conflict at the path would cost other writes of the
// same transaction a second try.
func (r *removal) remove(ctx context.Context, s *locks, path string, judged session.Decided) (bool, error) {
	mine, _, err := s.table.Claim(path)
	if mine == nil { // without an error, another goroutine of this process has or wants the lock
		return false, err
	}
	m := &marker{s: s, path: path, on: true, owner: s.table.Client.Owned("removes the marker"), marked: true}
	lease, err := acquire(ctx, mine, m)
	switch {
	case errors.Is(err, driver.ErrLocked):
		return false, nil
	case errors.Is(err, ErrNotPermitted): // another identity's marker must not end every pass
		s.log.Warn("zookeeper: the servers do not permit to remove this marker", "error", err)
		return false, nil
	case err != nil:
		return false, err
	}
	same := m.czxid == judged.Czxid && m.version == judged.Version
	if same {
		lease.MarkOnRelease(nil)
	}
	err = lease.Release(ctx)
	return same && err == nil, err
}
