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
	var chores sync.WaitGroup
	defer chores.Wait()
	defer cancel()
	var busy atomic.Int64
	for _, ch := range s.cfg.chores {
		chores.Go(func() { s.repeat(ctx, ch, &busy) })
	}
	for ctx.Err() == nil {
		began := time.Now()
		p := s.sweep(ctx)
		p.Leader, p.Duration = true, time.Since(began)
		p.Yielded = p.Newer > 0 && ctx.Err() == nil && busy.Load() == 0
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
	next  time.Time // used by the running term alone
}

// repeat runs a chore until the term ends. It does not hold up the sweep.
func (s *Sweeper) repeat(ctx context.Context, ch *chore, busy *atomic.Int64) {
	for {
		sleep(ctx, time.Until(ch.next))
		if ctx.Err() != nil {
			return
		}
		busy.Add(1)
		err := ch.run(ctx)
		busy.Add(-1)
		if ctx.Err() != nil {
			return
		}
		ch.next = time.Now().Add(ch.every)
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
