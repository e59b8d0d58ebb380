package sweeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/routes"
)

// Sweeper settles open attempts. Make it with [New] and start [Sweeper.Run].
type Sweeper struct {
	engine   *idem.Engine
	store    driver.Store
	policies *routes.Policies
	cfg      config

	// These belong to the running term. Terms follow each other.
	attempts map[string]*attempt // by case ID
	places   map[place]*attempt  // the same attempts by their place in the listing
	lanes    map[string]*lane    // by route
	running  []*result           // under way
	settled  chan *result        // that are over
	queued   map[string]bool     // case IDs in the inbox
	between  Pass                // results from between two passes
	held     time.Duration       // how long records held up the listing in this pass
	passes   uint64
	pause    time.Duration // after the last pass
}

// attempt is the leader's memory of an open attempt.
type attempt struct {
	place   place
	route   string
	next    time.Time     // when to look at it again
	pause   time.Duration // the one after that
	pass    uint64        // the last pass with it in the listing
	tries   int
	running bool
	putOff  bool // because of its lane, so it is due when the lane recovers
}

// New returns a sweeper for the records of the engine's store. The Name of each policy is its route,
// and a policy without a Name is for all other routes. The sweeper uses their InDoubt and
// ResolverTimeout. ResultTTL and KeyTTL count only if they are longer than those that the route had when
// the attempt began, which are in the record. So an InDoubt alone is enough. Interrupted attempts of a
// route without a policy become unknown. The error is for wrong wiring, such as no policies, two for one
// route, or an option out of range.
func New(engine *idem.Engine, policies []idem.Policy, opts ...Option) (*Sweeper, error) {
	if engine == nil || len(policies) == 0 {
		return nil, errors.New("sweeper: New needs an engine and policies")
	}
	known, err := routes.New(policies)
	if err != nil {
		return nil, fmt.Errorf("sweeper: %w", err)
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return &Sweeper{engine: engine, store: engine.Store(), policies: known, cfg: cfg,
		attempts: map[string]*attempt{}, places: map[place]*attempt{}, lanes: map[string]*lane{}, settled: make(chan *result)}, nil
}

// MustNew is [New] for known-good wiring. Like [regexp.MustCompile] it panics where New returns an
// error.
func MustNew(engine *idem.Engine, policies []idem.Policy, opts ...Option) *Sweeper {
	s, err := New(engine, policies, opts...)
	if err != nil {
		panic(err)
	}
	return s
}

// Run sweeps whenever this instance leads, until ctx ends. Then it finishes the
// record at hand and returns. This takes no longer than a resolver may take. Call Run
// once.
func (s *Sweeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		s.pause = s.cfg.interval
		if err := guarded("the election", func() error { return s.cfg.lead(ctx, s.term) }); err != nil && ctx.Err() == nil {
			s.cfg.observe(ctx, Pass{Err: err})
		}
		sleep(ctx, s.pause)
	}
}

// mostPause bounds how much a long pass delays the next one.
const mostPause = 5 * time.Second

// term is one leadership. It ends with its context, or when the leader yields the office.
// It returns when its chores have returned too.
func (s *Sweeper) term(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer s.finish(ctx)
	defer cancel()
	for _, ch := range s.cfg.chores {
		running.Go(func() { s.repeat(ctx, ch) })
	}
	for ctx.Err() == nil {
		began := time.Now()
		p := s.sweep(ctx)
		p.Leader, p.Duration = true, time.Since(began)
		// A due chore keeps the office, so a leader that yields often still runs its chores.
		due := slices.ContainsFunc(s.cfg.chores, func(ch *chore) bool { return ch.left() <= 0 })
		p.Yielded = p.Newer > 0 && ctx.Err() == nil && !due
		s.cfg.observe(ctx, p)
		s.pause = s.cfg.interval
		if s.held < mostHolding { // otherwise there is more to do
			s.pause = max(s.pause, min(9*p.Duration, mostPause))
		}
		if p.Yielded {
			return nil
		}
		s.tend(ctx, s.pause)
	}
	return context.Cause(ctx)
}

// chore is a task of the leader beside the sweep.
type chore struct {
	every time.Duration
	run   func(context.Context) error

	mu   sync.Mutex
	next time.Time // the chore is due from then on, until a run has finished
}

// left is the time until the chore is due.
func (c *chore) left() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Until(c.next)
}

// repeat runs a chore until the term ends. It does not hold up the sweep. If the end of
// the term cuts a run off, the chore stays due.
func (s *Sweeper) repeat(ctx context.Context, ch *chore) {
	for {
		sleep(ctx, ch.left())
		if ctx.Err() != nil {
			return
		}
		err := guarded("a chore", func() error { return ch.run(ctx) })
		if ctx.Err() != nil {
			return
		}
		ch.mu.Lock()
		ch.next = time.Now().Add(ch.every)
		ch.mu.Unlock()
		if err != nil {
			s.cfg.observe(ctx, Pass{Leader: true, Err: fmt.Errorf("sweeper: chore: %w", err)})
		}
	}
}

// sleep returns when d is over or ctx has ended.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
