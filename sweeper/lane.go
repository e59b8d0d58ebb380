package sweeper

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// lane has the records of one route. The listing waits for records of healthy routes, but not for long.
// A route is sick while its provider does not answer, or while
// its records fail. A sick route has calls of its own and takes none away from the others. It
// tries its records in turn, and those first that were tried least.
type lane struct {
	asking   atomic.Int64 // resolvers still running, also after their time
	running  int          // calls
	failures int          // in a row
	sick     bool
	waiting  []waiting // of a route without room, tried least first

	held time.Duration // how long it held up the listing in this pass
}

type waiting struct {
	row     *driver.OpenRecord
	attempt *attempt
}

const (
	// slowAfter is how long a call holds up the records of other routes.
	slowAfter = time.Second
	// mostHolding is how long the records of a route hold up the listing in a pass, and mostHoldingAll
	// how long those of all routes do. A pass also comes to the newest records soon then.
	mostHolding, mostHoldingAll = 2 * time.Second, 4 * time.Second
	// mostWaiting bounds the records of a sick route that wait for a call. Others wait in the store.
	mostWaiting = 32
)

func (s *Sweeper) lane(route string) *lane {
	l := s.lanes[route]
	if l == nil {
		l = &lane{}
		s.lanes[route] = l
	}
	return l
}

// wait makes a record of a sick route wait for a call. If too many wait, one that was tried most is
// put off.
func (l *lane) wait(row *driver.OpenRecord, a *attempt) {
	i, _ := slices.BinarySearchFunc(l.waiting, a.tries+1, func(w waiting, tries int) int { return w.attempt.tries - tries })
	l.waiting = slices.Insert(l.waiting, i, waiting{row, a})
	a.running = true
	if len(l.waiting) > mostWaiting {
		last := l.waiting[mostWaiting].attempt
		l.waiting = l.waiting[:mostWaiting]
		last.running, last.putOff = false, true
		last.next = time.Now().Add(min(last.pause, mostPutOff))
		last.pause = max(last.pause, min(2*last.pause, mostPutOff))
	}
}

// room waits until the route may make one more call. It does not wait if the route is sick, or if it or
// all routes together have held up the listing for long. It is false if the route makes as many as it may
// then, or if ctx has ended.
func (s *Sweeper) room(ctx context.Context, l *lane, p *Pass) bool {
	for ctx.Err() == nil {
		young, oldest := s.young()
		switch {
		case l.sick || l.held >= mostHolding || s.held >= mostHoldingAll:
			return len(l.waiting) == 0 && l.running < s.sickWorkers()
		case young < s.cfg.workers:
			return true
		}
		began := time.Now()
		s.receive(ctx, p, oldest)
		l.held += time.Since(began)
		s.held += time.Since(began)
	}
	return false
}

// sickWorkers is how many calls a sick route makes at a time.
func (s *Sweeper) sickWorkers() int { return max(1, s.cfg.workers/2) }

// young counts the calls that have not run for slowAfter, and says how long the oldest of them has until
// then. The routes of the others are sick.
func (s *Sweeper) young() (n int, left time.Duration) {
	left = slowAfter
	for _, r := range s.running {
		rest := slowAfter - time.Since(r.began)
		if rest <= 0 {
			r.slow, r.lane.sick = true, true
		}
		if !r.slow {
			n++
			left = min(left, rest)
		}
	}
	return n, left
}

// start settles a record in the background.
func (s *Sweeper) start(ctx context.Context, row *driver.OpenRecord, a *attempt) {
	r := &result{row: row, attempt: a, lane: s.lane(a.route), began: time.Now(), state: row.Record.State, err: row.Err}
	a.running = true
	r.lane.running++
	s.running = append(s.running, r)
	go func() {
		s.settle(ctx, r)
		s.settled <- r
	}()
}

// startWaiting starts the records of sick routes for which there is room.
func (s *Sweeper) startWaiting(ctx context.Context) {
	for _, l := range s.lanes {
		for len(l.waiting) > 0 && l.running < s.sickWorkers() && ctx.Err() == nil {
			w := l.waiting[0]
			l.waiting = l.waiting[1:]
			s.start(ctx, w.row, w.attempt)
		}
	}
}

// receive waits for a result, for d at most.
func (s *Sweeper) receive(ctx context.Context, p *Pass, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case r := <-s.settled:
		s.over(ctx, r, p)
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (s *Sweeper) over(ctx context.Context, r *result, p *Pass) {
	r.lane.running--
	s.running = slices.DeleteFunc(s.running, func(other *result) bool { return other == r })
	s.account(ctx, r, p)
}

// collect accounts for what is over.
func (s *Sweeper) collect(ctx context.Context, p *Pass) {
	for {
		select {
		case r := <-s.settled:
			s.over(ctx, r, p)
		default:
			return
		}
	}
}

// await waits for the calls that do not take long.
func (s *Sweeper) await(ctx context.Context, p *Pass) {
	for ctx.Err() == nil {
		young, left := s.young()
		if young == 0 {
			return
		}
		s.receive(ctx, p, left)
		s.startWaiting(ctx)
	}
}

// tend is the pause between two passes. Sick routes go on meanwhile, and their results belong to the
// next pass.
func (s *Sweeper) tend(ctx context.Context, d time.Duration) {
	for end := time.Now().Add(d); ctx.Err() == nil && time.Now().Before(end); s.startWaiting(ctx) {
		s.receive(ctx, &s.between, time.Until(end))
	}
}

// finish waits for all calls at the end of a term.
func (s *Sweeper) finish(ctx context.Context) {
	for len(s.running) > 0 {
		s.over(ctx, <-s.settled, &s.between)
	}
	for _, l := range s.lanes {
		for _, w := range l.waiting {
			w.attempt.running = false
		}
		l.waiting = nil
	}
}

// judge decides by a result whether the route is sick.
func (s *Sweeper) judge(r *result) {
	l := r.lane
	switch {
	case r.slow || time.Since(r.began) >= slowAfter:
		l.sick = true
	case errors.Is(r.err, idem.ErrNotOpen), errors.Is(r.err, driver.ErrLocked), errors.Is(r.err, errRunsAgain), errors.Is(r.err, idem.ErrForeignDomain):
		return // says nothing
	case r.err != nil:
		if l.failures++; l.failures >= s.cfg.workers {
			l.sick = true
		}
	default:
		if l.sick {
			s.recover(r.attempt.route)
		}
		l.failures, l.sick = 0, false
	}
}

// recover makes the records of a route due that were put off.
func (s *Sweeper) recover(route string) {
	for _, a := range s.attempts {
		if a.putOff && a.route == route {
			a.next, a.putOff = time.Time{}, false
		}
	}
}
