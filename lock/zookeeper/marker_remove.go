package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// MarkerRemoval says which markers [Locker.RemoveMarkers] removes.
type MarkerRemoval struct {
	// Retention is how long a marker is kept, counted from when it was last
	// written, by the ensemble's clock. It has to be longer than any client
	// repeats a request. Required.
	Retention time.Duration

	// Settled is asked about each marker of an unknown outcome that is older
	// than that: whether it has been settled since, so that nobody needs the
	// marker. It is called from several goroutines at once. Where it fails, the
	// marker stays and the pass goes on. Default: such markers are kept for ever.
	Settled func(ctx context.Context, id idem.KeyID, m *idem.Marker) (bool, error)

	// PerSecond bounds how many markers are looked at. Default: 2000.
	PerSecond int
}

// MarkerStats counts the markers that a pass has looked at. Each is one of
// Removed, Kept and Unknown.
type MarkerStats struct {
	Looked  int
	Removed int
	Kept    int // too young, locked at that moment, changed meanwhile, or not permitted
	Unknown int // old enough, but nobody knows the outcome yet
}

const defaultPerSecond = 2000

// lookers is how many markers are looked at, and removed, at the same time.
const lookers = 64

// RemoveMarkers goes once through all markers, also those of other instances,
// and removes what has served its time. With or without [WithDurableMarkers]:
// nothing else ever removes them. Run it by one elected instance; several at
// once do no harm, nor does one that ends half way.
//
// A marker is removed by who holds its key's lock, as if by an attempt that
// released the key with MarkOnRelease(nil), and only if it is still the one that was
// judged. So it is never taken from under an attempt, and one that was written
// anew stays. A request that comes at that very moment finds the key locked.
//
// It returns what was done so far also with an error: of ctx, idem.ErrUnavailable,
// or, when it is through, one of Settled. A removal that was under way is finished in the
// background then.
func (l *Locker) RemoveMarkers(ctx context.Context, opts MarkerRemoval) (MarkerStats, error) {
	if opts.Retention <= 0 {
		return MarkerStats{}, errors.New("zookeeper: MarkerRemoval without a Retention")
	}
	if opts.PerSecond < 0 {
		return MarkerStats{}, errors.New("zookeeper: MarkerRemoval with a negative PerSecond")
	}
	defaultTo(&opts.PerSecond, defaultPerSecond)
	r := &removal{
		c: l.c, opts: opts, now: serverNow,
		pace: pacer{pause: time.Second / time.Duration(opts.PerSecond)},
	}
	err := r.run(ctx)
	if doubt := r.doubt.Load(); err == nil && doubt != nil {
		err = *doubt
	}
	return r.stats(), err
}

// removal is one pass.
type removal struct {
	c    *Client
	opts MarkerRemoval
	now  func(ctx context.Context, s *locks) (ms int64, err error)
	pace pacer

	looked, removed, kept, unknown atomic.Int64

	doubt atomic.Pointer[error] // the last one of Settled
}

func (r *removal) stats() MarkerStats {
	return MarkerStats{
		Looked: int(r.looked.Load()), Removed: int(r.removed.Load()),
		Kept: int(r.kept.Load()), Unknown: int(r.unknown.Load()),
	}
}

// run begins somewhere, so that passes that are all cut short still come to
// every marker in the end.
func (r *removal) run(ctx context.Context) error {
	root := r.c.cfg.Chroot + r.c.cfg.Root
	_, shards, err := r.list(ctx, root)
	shards = slices.DeleteFunc(shards, func(name string) bool { return root+"/"+name == r.c.cfg.basePath() })
	if err != nil || len(shards) == 0 {
		return err
	}
	first := rand.N(len(shards))
	for i := range shards {
		if err := r.shard(ctx, root, shards[(first+i)%len(shards)]); err != nil {
			return err
		}
	}
	return nil
}

// list returns the names below a path, and the session that it was asked in. It
// paces, so that empty parents are not run through too fast either.
func (r *removal) list(ctx context.Context, path string) (*locks, []string, error) {
	if err := r.pace.wait(ctx); err != nil {
		return nil, nil, err
	}
	s, err := r.c.usable()
	if err != nil {
		return nil, nil, err
	}
	n, err := session.Within(ctx, s.Session, func() (session.Hint, error) { return s.Look(path, session.OfChildren) })
	if err != nil {
		return nil, nil, unavailable(ctx, err)
	}
	return s, n.Names, nil
}

// shard goes through one of the parents.
func (r *removal) shard(ctx context.Context, root, shard string) error {
	s, names, err := r.list(ctx, root+"/"+shard)
	if err != nil || len(names) == 0 {
		return err
	}
	now, err := r.now(ctx, s)
	if err != nil {
		return unavailable(ctx, err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	turns := make(chan struct{}, lookers)
	for _, name := range names {
		id, err := idem.ParseKeyID(shard + name)
		if err != nil || r.c.cfg.lockPath(id) != root+"/"+shard+"/"+name {
			continue // nothing of ours
		}
		if err := r.pace.wait(ctx); err != nil {
			stop(err)
			break
		}
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			if err := r.look(ctx, s, id, now); err != nil {
				stop(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// serverNow is the time of the ensemble's clock, which stamps all writes: that
// of a write just made.
func serverNow(ctx context.Context, s *locks) (ms int64, err error) {
	if err := s.Barrier(ctx); err != nil {
		return 0, err
	}
	n, err := session.Within(ctx, s.Session, func() (session.Decided, error) { return s.Decide(s.Member(), session.OfNode) })
	if err == nil && !n.Exists {
		err = session.ErrNoMember
	}
	return n.Mtime, err
}

// unavailable is err as callers are to get it: the cause of ctx where that has
// ended.
func unavailable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, idem.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: remove markers: %w", idem.ErrUnavailable, err)
}

// pacer spreads steps over time.
type pacer struct {
	pause time.Duration // between two steps
	due   time.Time     // of the next step
}

// slack is how much too early a step may be: shorter sleeps are not worth their
// timer.
const slack = 5 * time.Millisecond

// wait waits for the next step, or for the end of ctx. Time that was not made
// use of is not made up for.
func (p *pacer) wait(ctx context.Context) error {
	now := time.Now()
	if p.due.Before(now) {
		p.due = now
	}
	ahead := p.due.Sub(now)
	p.due = p.due.Add(p.pause)
	if ahead > slack {
		select {
		case <-time.After(ahead):
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
