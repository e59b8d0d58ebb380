package sweeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Pass is what one walk over the open records came to.
type Pass struct {
	Leader   bool // false: this instance was not elected, see Err
	Yielded  bool // the office was given up after this pass, for a newer build
	Duration time.Duration
	Looked   int   // records listed
	Deferred int   // left for later: looked at a short while ago
	Held     int   // whose holder runs
	Left     int   // left to the next request with the key: the route runs again in doubt
	Applied  int   // settled as completed
	Released int   // settled as not applied
	Unknown  int   // that nobody could tell
	Queued   int   // put into the inbox
	Unqueued int   // that the inbox did not take; Err has the last reason
	Failed   int   // that could not be decided; Err has the last reason
	Newer    int   // that a newer build wrote: left to an instance of such a build
	Corrupt  int   // that nobody can read; put into the inbox
	Err      error // internal; for logs
}

// Settled is how many records were decided.
func (p *Pass) Settled() int { return p.Applied + p.Released }

// Pauses before a record is looked at again. A held one is looked at soon: its
// holder may be dead, and its lock about to go.
const (
	firstPause  = time.Second
	mostHeld    = 4 * time.Second
	mostFailed  = 5 * time.Second
	listTimeout = 10 * time.Second
	putTimeout  = 5 * time.Second
)

// result is what became of one record.
type result struct {
	row    idem.OpenRecord
	state  idem.State
	err    error
	reason string
}

// sweep walks over all open records once. It goes on where it can: what could
// not be decided is looked at again in a later pass.
func (s *Sweeper) sweep(ctx context.Context, pass uint64) (p Pass) {
	known, err := s.known(ctx)
	if err != nil {
		p.unqueued(ctx, err)
	}
	q := idem.OpenQuery{OlderThan: s.cfg.minAge, Limit: s.cfg.page}
	for {
		page, err := s.list(ctx, q)
		if err != nil {
			p.fail(ctx, err)
			return p // what was not listed is not forgotten
		}
		p.Looked += len(page.Records)
		before := p.Failed
		for r := range s.settleAll(ctx, s.due(page.Records, pass, known, &p)) {
			s.account(ctx, &r, &p)
		}
		failed := p.Failed - before
		if failed > 0 && failed == len(page.Records) || ctx.Err() != nil {
			return p // everything fails: nothing would come of the rest
		}
		if q.After = page.Next; q.After == nil {
			break
		}
	}
	s.forget(ctx, pass, known, &p)
	return p
}

func (s *Sweeper) list(ctx context.Context, q idem.OpenQuery) (idem.OpenPage, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return s.store.Open(ctx, q)
}

// due are the records of a page that are to be looked at now.
func (s *Sweeper) due(page []idem.OpenRecord, pass uint64, known map[string]bool, p *Pass) []idem.OpenRecord {
	now := time.Now()
	due := page[:0:0]
	for _, row := range page {
		if errors.Is(row.Err, idem.ErrNewerRecord) {
			p.Newer++
			continue
		}
		id := caseID(&row)
		a := s.pending[id]
		if a == nil {
			a = &attempt{wait: backoff{first: firstPause, most: s.cfg.maxBackoff}, queued: known[id]}
			s.pending[id] = a
		}
		a.pass = pass
		if now.Before(a.next) {
			p.Deferred++
			continue
		}
		due = append(due, row)
	}
	return due
}

// settleAll has the records decided, a few at a time.
func (s *Sweeper) settleAll(ctx context.Context, rows []idem.OpenRecord) <-chan result {
	results := make(chan result)
	var workers sync.WaitGroup
	work := make(chan idem.OpenRecord)
	for range min(s.cfg.workers, len(rows)) {
		workers.Go(func() {
			for row := range work {
				results <- s.settle(ctx, row)
			}
		})
	}
	go func() {
		defer close(results)
		defer workers.Wait()
		defer close(work)
		for _, row := range rows {
			if ctx.Err() != nil {
				return
			}
			work <- row
		}
	}()
	return results
}

// errBusy says that resolvers hang: those that ignore their context are left
// behind, but not ever more of them.
var errBusy = errors.New("sweeper: too many resolvers have not returned")

// settle has one record decided.
func (s *Sweeper) settle(ctx context.Context, row idem.OpenRecord) (r result) {
	r = result{row: row, state: row.Record.State, err: row.Err}
	if r.err != nil {
		return r
	}
	defer func() { // of the application's Policies
		if v := recover(); v != nil {
			r.err = fmt.Errorf("sweeper: panic: %v", v)
		}
	}()
	policy, ok := s.policies(row.Record.Route)
	if !ok {
		policy = idem.Policy{AllowGlobalKeys: true}
	}
	policy, err := policy.WithDefaults()
	if err != nil {
		r.err = err
		return r
	}
	r.reason = "the route has no resolver"
	asked := func() {}
	if policy.Doubt.RunsAgain() {
		return s.release(ctx, r, &policy)
	}
	if resolver := policy.Doubt.Resolver(); resolver != nil {
		r.reason = "the resolver cannot tell"
		select {
		case s.hung <- struct{}{}:
		default:
			r.err = errBusy
			return r
		}
		free := sync.OnceFunc(func() { <-s.hung })
		var called atomic.Bool
		asked = func() {
			if !called.Load() {
				free()
			}
		}
		policy.Doubt = idem.Ask(func(ctx context.Context, in idem.Interrupted) (idem.Resolution, error) {
			called.Store(true)
			defer free()
			return resolver(ctx, in)
		})
	} else if r.state == idem.StateUnknown {
		return r // nothing to ask
	}
	rec, err := s.engine.Resolve(ctx, row.ID, &policy)
	asked()
	r.state, r.err = rec.State, err
	return r
}

// errRunsAgain says that a record is left to the next request with its key.
var errRunsAgain = errors.New("sweeper: the route runs again in doubt")

// release gives a key back whose route runs again in doubt, once its last attempt is
// older than the key's time to live: the client has given up by then. Until then the
// record binds the key to its request.
func (s *Sweeper) release(ctx context.Context, r result, policy *idem.Policy) result {
	attempt := r.row.Record.Attempt
	old, err := s.older(ctx, &r.row, policy.KeyTTL)
	if err == nil && !old {
		err = errRunsAgain
	}
	if err != nil {
		r.err = err
		return r
	}
	d := idem.Decision{By: "sweeper", Reason: "older than the key's time to live, on a route that runs again in doubt"}
	rec, err := s.engine.Decide(ctx, r.row.ID, attempt, idem.NotApplied(), d, policy)
	r.state, r.err = rec.State, err
	return r
}

// older reports whether the attempt of a record began longer ago than age, by the
// store's clock: it lists what is that old, from this record on.
func (s *Sweeper) older(ctx context.Context, row *idem.OpenRecord, age time.Duration) (bool, error) {
	if time.Since(row.Record.Started) < age { // spares asking
		return false, nil
	}
	after := row.Cursor()
	for i := len(after.ID) - 1; i >= 0; i-- { // the ID before this one
		if after.ID[i]--; after.ID[i] != 0xff {
			break
		}
	}
	page, err := s.list(ctx, idem.OpenQuery{OlderThan: age, After: &after, Limit: 1})
	return len(page.Records) > 0 && page.Records[0].ID == row.ID, err
}

// account counts a result, says when to look at the record again, and puts it
// into the inbox where only a person can settle it.
func (s *Sweeper) account(ctx context.Context, r *result, p *Pass) {
	a := s.pending[caseID(&r.row)]
	switch {
	case errors.Is(r.err, idem.ErrNotOpen): // others were faster
	case errors.Is(r.err, idem.ErrNewerRecord): // it was written since it was listed
		p.Newer++
	case errors.Is(r.err, idem.ErrCorruptRecord):
		p.Corrupt++
		r.reason = r.err.Error()
		s.queue(ctx, a, r, p)
		a.postpone(s.cfg.maxBackoff)
	case errors.Is(r.err, errRunsAgain):
		p.Left++
		a.postpone(s.cfg.maxBackoff)
	case errors.Is(r.err, errBusy):
		p.Deferred++
		p.Err = r.err
		a.postpone(mostFailed)
	case errors.Is(r.err, idem.ErrLocked):
		p.Held++
		a.postpone(mostHeld)
	case errors.Is(r.err, idem.ErrForeignDomain):
		p.Unknown++
		r.reason = "it ran under a lock of another domain; see idemctl store retire"
		s.queue(ctx, a, r, p)
		a.postpone(s.cfg.maxBackoff)
	case r.err != nil:
		p.fail(ctx, r.err)
		a.postpone(mostFailed)
	case r.state == idem.StateCompleted:
		p.Applied++
	case r.state == idem.StateUnknown:
		p.Unknown++
		s.queue(ctx, a, r, p)
		a.postpone(s.cfg.maxBackoff)
	default:
		p.Released++
	}
}

// fail counts an error, unless it is that of a sweeper that is being stopped.
func (p *Pass) fail(ctx context.Context, err error) {
	if ctx.Err() == nil {
		p.Failed++
		p.Err = err
	}
}

// unqueued counts an error of the inbox, likewise.
func (p *Pass) unqueued(ctx context.Context, err error) {
	if ctx.Err() == nil {
		p.Unqueued++
		p.Err = err
	}
}

// postpone is for a record that could not be settled now.
func (a *attempt) postpone(most time.Duration) {
	a.next = time.Now().Add(min(a.wait.next(), most))
}

// queue puts an attempt into the inbox, once.
func (s *Sweeper) queue(ctx context.Context, a *attempt, r *result, p *Pass) {
	if s.cfg.inbox == nil || a.queued || p.Unqueued > 0 { // what fails once is not tried for each
		return
	}
	call, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	r.row.Record.State = r.state
	id, c := caseOf(&r.row, r.reason)
	if err := s.cfg.inbox.Put(call, id, c); err != nil {
		p.unqueued(ctx, fmt.Errorf("sweeper: inbox: %w", err))
		return
	}
	a.queued = true
	p.Queued++
}

// known lists what the inbox knows, before the records are listed: what is not
// open by then is settled.
func (s *Sweeper) known(ctx context.Context) (map[string]bool, error) {
	known := map[string]bool{}
	if s.cfg.inbox == nil {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	ids, err := s.cfg.inbox.Known(ctx)
	if err != nil {
		return known, fmt.Errorf("sweeper: inbox: %w", err)
	}
	for _, id := range ids {
		known[id] = true
	}
	return known, nil
}

// forget drops what is not open any more.
func (s *Sweeper) forget(ctx context.Context, pass uint64, known map[string]bool, p *Pass) {
	for id, a := range s.pending {
		if a.pass != pass {
			delete(s.pending, id)
		}
	}
	for id := range known {
		if s.pending[id] != nil || ctx.Err() != nil || p.Unqueued > 0 {
			continue
		}
		if open, err := s.isOpen(ctx, id); err != nil || open {
			continue // it was not listed all the same: the store's clock was set back
		}
		if err := s.cfg.inbox.Forget(ctx, id); err != nil {
			p.unqueued(ctx, fmt.Errorf("sweeper: inbox: %w", err))
		}
	}
}

// isOpen looks at the attempt of a case.
func (s *Sweeper) isOpen(ctx context.Context, id string) (bool, error) {
	text, _, _ := strings.Cut(id, "-")
	key, err := idem.ParseKeyID(text)
	if err != nil {
		return false, nil // no ID of ours: nobody needs it
	}
	call, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	rec, err := s.store.Get(call, key)
	return rec.State.Open() && caseID(&idem.OpenRecord{ID: key, Record: rec}) == id, err
}
