package sweeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Policies tells how records of a route are to be settled: with the policy that
// the route's middleware has, above all its Resolver. Where it knows none, false,
// an interrupted attempt becomes unknown.
type Policies func(route string) (idem.Policy, bool)

// ForAll is one policy for all routes.
func ForAll(p idem.Policy) Policies { return func(string) (idem.Policy, bool) { return p, true } }

// Sweeper settles what is open. Make it with [New], and let [Sweeper.Run] work.
type Sweeper struct {
	engine   *idem.Engine
	store    idem.Store
	policies Policies
	cfg      config

	hung chan struct{} // one element for each resolver that is being asked

	// Of the last term: terms follow each other, and each reads what was left.
	pending map[string]*attempt
	passes  uint64
	yielded time.Duration // for how long the office is left to others; 0: it was lost
}

// attempt is an open one, as the leader knows it.
type attempt struct {
	wait   backoff
	next   time.Time // when to look at it again
	queued bool      // it is in the inbox
	pass   uint64    // in which it was last seen
}

// New returns a sweeper for the records of a store, which is the engine's own.
func New(engine *idem.Engine, store idem.Store, policies Policies, opts ...Option) (*Sweeper, error) {
	if engine == nil || store == nil || policies == nil {
		return nil, errors.New("sweeper: New needs an engine, its store, and policies")
	}
	s := &Sweeper{engine: engine, store: store, policies: policies, cfg: defaultConfig()}
	for _, opt := range opts {
		if opt != nil {
			opt(&s.cfg)
		}
	}
	if err := s.cfg.validate(); err != nil {
		return nil, err
	}
	s.pending = map[string]*attempt{}
	s.hung = make(chan struct{}, s.cfg.workers)
	return s, nil
}

// Run sweeps whenever this instance leads, until ctx ends; then it finishes
// what it is deciding, which takes no longer than a resolver may, and returns.
// It is called once.
func (s *Sweeper) Run(ctx context.Context) {
	pause := backoff{first: 100 * time.Millisecond, most: s.cfg.interval}
	for ctx.Err() == nil {
		began := time.Now()
		s.yielded = 0
		err := s.cfg.lead(ctx, s.term)
		if ctx.Err() == nil && err != nil {
			s.cfg.observer(ctx, Pass{Err: err})
		}
		if s.yielded > 0 {
			sleep(ctx, s.yielded)
			continue
		}
		s.pending = map[string]*attempt{}       // others know better by now
		if time.Since(began) > s.cfg.interval { // it was no failure at once
			pause = backoff{first: 100 * time.Millisecond, most: s.cfg.interval}
		}
		sleep(ctx, pause.next())
	}
}

// mostPause bounds how much a pass that took long delays the next one.
const mostPause = 5 * time.Second

// term is one leadership. It ends with its context, or after a pass that met
// records of a newer build, when nothing of it runs any more.
func (s *Sweeper) term(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var chores sync.WaitGroup
	defer chores.Wait()
	defer cancel()
	for _, ch := range s.cfg.chores {
		chores.Go(func() { s.repeat(ctx, ch) })
	}
	for ctx.Err() == nil {
		s.passes++
		began := time.Now()
		p := s.sweep(ctx, s.passes)
		p.Leader, p.Duration = true, time.Since(began)
		p.Yielded = p.Newer > 0 && ctx.Err() == nil && !s.busy()
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

// busy reports whether a chore runs.
func (s *Sweeper) busy() bool {
	return slices.ContainsFunc(s.cfg.chores, func(ch *chore) bool { return ch.running.Load() })
}

// repeat does a chore again and again, beside the sweep: it may take long.
func (s *Sweeper) repeat(ctx context.Context, ch *chore) {
	for {
		sleep(ctx, time.Until(ch.next))
		if ctx.Err() != nil {
			return
		}
		ch.running.Store(true)
		err := ch.run(ctx)
		ch.running.Store(false)
		if ctx.Err() != nil {
			return
		}
		ch.next = time.Now().Add(ch.every)
		if err != nil {
			s.cfg.observer(ctx, Pass{Leader: true, Err: fmt.Errorf("sweeper: chore: %w", err)})
		}
	}
}

// chore is what the leader does beside sweeping.
type chore struct {
	every   time.Duration
	run     func(context.Context) error
	next    time.Time // not before; of the last term's goroutine, or this one's
	running atomic.Bool
}

// backoff doubles a pause up to a limit.
type backoff struct{ first, most time.Duration }

func (b *backoff) next() time.Duration {
	d := min(b.first, b.most)
	b.first = min(2*b.first, b.most)
	return d
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
