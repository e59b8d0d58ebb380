package sweeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Policies gives the policy of a route, the same as the route's middleware has.
// Its InDoubt is what counts. It returns false for an unknown route, whose
// interrupted attempts become unknown.
type Policies func(route string) (idem.Policy, bool)

// ForAll is one policy for all routes.
func ForAll(p idem.Policy) Policies { return func(string) (idem.Policy, bool) { return p, true } }

// Sweeper settles open attempts. Make it with [New] and start [Sweeper.Run].
type Sweeper struct {
	engine   *idem.Engine
	store    idem.Store
	policies Policies
	cfg      config

	asking atomic.Int64 // resolvers that have not returned
	chores chores

	// These belong to the running term. Terms follow each other.
	attempts map[string]*attempt // by case ID
	passes   uint64
	yielded  time.Duration // how long the office is left to others, 0 if it was not yielded
}

// attempt is what the leader remembers of an open attempt.
type attempt struct {
	next   time.Time     // when to look at it again
	pause  time.Duration // the one after that
	queued bool          // it is in the inbox
	pass   uint64        // the last pass that listed it
}

// New returns a sweeper for the records of the engine's store.
func New(engine *idem.Engine, store idem.Store, policies Policies, opts ...Option) (*Sweeper, error) {
	if engine == nil || store == nil || policies == nil {
		return nil, errors.New("sweeper: New needs an engine, its store and policies")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return &Sweeper{engine: engine, store: store, policies: policies, cfg: cfg}, nil
}

// Run sweeps whenever this instance leads, until ctx ends. Then it finishes the
// record at hand, which takes no longer than a resolver may take, and returns. It
// is called once.
func (s *Sweeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if s.yielded == 0 {
			s.attempts = map[string]*attempt{} // another leader may know better by now
		}
		s.yielded = 0
		if err := s.cfg.lead(ctx, s.term); err != nil && ctx.Err() == nil {
			s.cfg.observer(ctx, Pass{Err: err})
		}
		sleep(ctx, max(s.yielded, s.cfg.interval))
	}
}

// mostPause bounds how much a long pass delays the next one.
const mostPause = 5 * time.Second

// term is one leadership. It ends with its context, or when the office is yielded.
// It returns when its chores have returned too.
func (s *Sweeper) term(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	s.chores.begin()
	for _, ch := range s.cfg.chores {
		running.Go(func() { s.repeat(ctx, ch) })
	}
	for ctx.Err() == nil {
		began := time.Now()
		p := s.sweep(ctx)
		p.Leader, p.Duration = true, time.Since(began)
		p.Yielded = p.Newer > 0 && ctx.Err() == nil && s.chores.end(s.cfg.chores)
		s.cfg.observer(ctx, p)
		pause := max(s.cfg.interval, min(9*p.Duration, mostPause))
		if p.Yielded {
			s.yielded = pause
			return nil
		}
		sleep(ctx, pause)
	}
	return context.Cause(ctx)
}

// chore is a task of the leader beside the sweep.
type chore struct {
	every time.Duration
	run   func(context.Context) error

	// Guarded by chores.mu, except that the goroutine of the chore reads next.
	next    time.Time
	running bool
}

// chores decides whether a chore starts or the office is yielded. A chore that runs or
// is due keeps the office, so a leader that yields often does not put its chores off.
type chores struct {
	mu    sync.Mutex
	ended bool // no chore starts any more in this term
}

func (c *chores) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = false
}

// end reports whether the office can be yielded. No chore starts after that.
func (c *chores) end(all []*chore) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range all {
		if ch.running || !time.Now().Before(ch.next) {
			return false
		}
	}
	c.ended = true
	return true
}

// start reports whether a chore may run now.
func (c *chores) start(ch *chore) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch.running = !c.ended
	return ch.running
}

// done takes note of a run. One that was cut off by the end of the term is due again.
func (c *chores) done(ch *chore, finished bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch.running = false
	if finished {
		ch.next = time.Now().Add(ch.every)
	}
}

// repeat runs a chore until the term ends. It does not hold up the sweep.
func (s *Sweeper) repeat(ctx context.Context, ch *chore) {
	for {
		sleep(ctx, time.Until(ch.next))
		if ctx.Err() != nil || !s.chores.start(ch) {
			return
		}
		err := ch.run(ctx)
		finished := ctx.Err() == nil
		s.chores.done(ch, finished)
		if !finished {
			return
		}
		if err != nil {
			s.cfg.observer(ctx, Pass{Leader: true, Err: fmt.Errorf("sweeper: chore: %w", err)})
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
