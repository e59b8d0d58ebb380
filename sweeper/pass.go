package sweeper

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Pass is the result of one walk over the open records.
type Pass struct {
	Leader   bool // false if this instance was not elected, with the reason in Err
	Yielded  bool // the office was given up after this pass, for a newer build
	Duration time.Duration
	Looked   int   // records listed
	Deferred int   // left for a later pass
	Held     int   // a holder runs
	Left     int   // left to the next request with the key, because the route runs again in doubt
	Applied  int   // settled as completed
	Released int   // settled as not applied
	Unknown  int   // the outcome is still unknown
	Queued   int   // put into the inbox
	Unqueued int   // calls of the inbox that failed, with the last reason in Err
	Failed   int   // lookups and records that failed, with the last reason in Err
	Newer    int   // written by a newer build, and left to an instance of that build
	Corrupt  int   // unreadable for every build, and put into the inbox
	Err      error // internal, for logs
}

// Settled is how many records were decided.
func (p *Pass) Settled() int { return p.Applied + p.Released }

// fail counts an error, unless the sweeper is being stopped.
func (p *Pass) fail(ctx context.Context, count *int, err error) {
	if ctx.Err() == nil {
		*count++
		p.Err = err
	}
}

// Pauses before a record is looked at again. The pause of a held record is short,
// because its holder may be dead and its lock about to go.
const (
	firstPause  = time.Second
	mostHeld    = 4 * time.Second
	mostFailed  = 5 * time.Second
	mostPutOff  = 30 * time.Second
	listTimeout = 10 * time.Second
)

// sweep walks over all open records once. Undecided records come again in a later pass. Records of
// sick routes, and calls that take long, are left to run while the pass goes on.
func (s *Sweeper) sweep(ctx context.Context) (p Pass) {
	s.passes++
	s.held = 0
	for _, l := range s.lanes {
		l.held = 0
	}
	p, s.between = s.between, Pass{}
	s.readInbox(ctx, &p)
	s.collect(ctx, &p)
	complete := true
	for q := (driver.OpenQuery{OlderThan: s.cfg.minAge, Limit: s.cfg.page, WithoutResponses: true}); ; {
		q.Skip = func(c driver.OpenCursor) bool { return s.skips(c, &p) }
		page, err := s.list(ctx, q)
		if err != nil { // a part of the store may have answered all the same
			if complete {
				p.fail(ctx, &p.Failed, err)
			}
			complete = false
		}
		p.Looked += len(page.Records)
		s.settleDue(ctx, page.Records, &p)
		if q.After = page.Next; q.After == nil || ctx.Err() != nil {
			break
		}
	}
	s.startWaiting(ctx)
	s.await(ctx, &p)
	if complete && ctx.Err() == nil {
		s.forget(ctx, &p) // only after a complete listing
	}
	return p
}

func (s *Sweeper) list(ctx context.Context, q driver.OpenQuery) (page driver.OpenPage, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	err = guarded("ListOpen", func() error {
		page, err = s.store.ListOpen(ctx, q)
		return err
	})
	return page, err
}

// place is the place of an attempt in the listing.
type place struct {
	id      driver.KeyID
	started int64
}

func placeOf(c driver.OpenCursor) place { return place{c.ID, c.Started.UnixMicro()} }

// skips reports whether the pass leaves out a record, which the store need not read then.
func (s *Sweeper) skips(c driver.OpenCursor, p *Pass) bool {
	a := s.places[placeOf(c)]
	if a == nil || !a.running && !time.Now().Before(a.next) {
		return false
	}
	if a.pass != s.passes {
		p.Looked++
		p.Deferred++
	}
	a.pass = s.passes
	return true
}

// settleDue settles the records of a page whose pause is over, a few at a time. It starts
// no more when ctx has ended. Only its own goroutine uses the pass and the attempts.
func (s *Sweeper) settleDue(ctx context.Context, rows []driver.OpenRecord, p *Pass) {
	for i := range rows {
		row := &rows[i]
		a := s.due(row, p)
		switch {
		case ctx.Err() != nil:
			return
		case a == nil:
		case s.room(ctx, s.lane(a.route), p):
			s.start(ctx, row, a)
		case ctx.Err() == nil:
			s.lane(a.route).wait(row, a)
			p.Deferred++
		}
	}
}

// due returns the attempt of a listed record, or nil if the pass leaves it out.
func (s *Sweeper) due(row *driver.OpenRecord, p *Pass) *attempt {
	if errors.Is(row.Err, driver.ErrNewerRecord) {
		p.Newer++
		return nil
	}
	id := caseID(row)
	a := s.attempts[id]
	if a == nil {
		a = &attempt{place: placeOf(row.Cursor()), route: row.Record.Route, pause: min(firstPause, s.cfg.maxBackoff)}
		s.attempts[id] = a
		s.places[a.place] = a
	}
	a.pass = s.passes
	if a.running || time.Now().Before(a.next) {
		p.Deferred++
		return nil
	}
	return a
}

// result is the outcome of settling one record.
type result struct {
	row     *driver.OpenRecord
	attempt *attempt
	lane    *lane
	began   time.Time
	slow    bool // it has run for slowAfter
	state   driver.State
	err     error
	reason  string // the cause of an unknown outcome
}

var (
	errBusy      = errors.New("sweeper: too many resolvers of the route have not returned")
	errRunsAgain = errors.New("sweeper: the route runs again in doubt")
)

// settle decides one record.
func (s *Sweeper) settle(ctx context.Context, r *result) {
	if r.err != nil {
		return
	}
	policy, _ := s.policies.Of(r.row.Record.Route)
	policy.AllowGlobalKeys = true // the record's key ID has its scope, and a consumer's policy has none
	if policy, r.err = policy.WithDefaults(); r.err != nil {
		return
	}
	if policy.RunsAgain(r.row.Record.Attempt) {
		r.state, r.err = s.releaseOld(ctx, r.row, &policy)
		return
	}
	r.reason = "the route has no resolver"
	if policy.InDoubt.RunsAgain() {
		r.reason = "the route has run it as often as it may"
	}
	if resolver := policy.InDoubt.Resolver(); resolver != nil {
		r.reason = "the resolver cannot tell"
		if r.lane.asking.Load() >= int64(s.cfg.workers) {
			r.err = errBusy // resolvers that ignore their context must not pile up
			return
		}
		policy.InDoubt = idem.AskResolver(func(ctx context.Context, in idem.Interrupted) (idem.Resolution, error) {
			r.lane.asking.Add(1)
			defer r.lane.asking.Add(-1)
			return resolver(ctx, in)
		})
	} else if r.state == driver.StateUnknown {
		return
	}
	rec, err := s.engine.Resolve(ctx, r.row.ID, &policy)
	r.state, r.err = rec.State, err
}

// releaseOld releases a key whose route runs again in doubt, once the attempt is
// older than the key's time to live. By then the client has given up. Until then
// the record binds the key to its request. The record may know a longer time to live
// than the policy, which may have come with a later deployment.
func (s *Sweeper) releaseOld(ctx context.Context, row *driver.OpenRecord, policy *idem.Policy) (driver.State, error) {
	// The store's clock counts, so the store is asked for records of this age.
	// The zero ID comes before all others of the same moment.
	after := driver.OpenCursor{Started: row.Record.Started}
	page, err := s.list(ctx, driver.OpenQuery{OlderThan: max(policy.KeyTTL, row.Record.KeyTTL), After: &after, Limit: 1})
	if err != nil {
		return row.Record.State, err
	}
	if len(page.Records) == 0 || !page.Records[0].Record.Started.Equal(after.Started) {
		return row.Record.State, errRunsAgain
	}
	d := driver.Decision{By: "sweeper", Reason: "older than the key's time to live, on a route that runs again in doubt"}
	rec, err := s.engine.Decide(ctx, row.ID, row.Record.Attempt, idem.NotApplied(), d, policy)
	return rec.State, err
}

// account counts a result and plans the next look at the record. If only a person can
// settle the record, it goes into the inbox.
func (s *Sweeper) account(ctx context.Context, r *result, p *Pass) {
	count, pause, reason := &p.Unknown, s.cfg.maxBackoff, ""
	r.attempt.running, r.attempt.putOff = false, false
	r.attempt.tries++
	s.judge(r)
	switch {
	case errors.Is(r.err, idem.ErrNotOpen), r.err != nil && ctx.Err() != nil:
		return // it was settled since it was listed, or the sweeper is being stopped
	case errors.Is(r.err, driver.ErrNewerRecord): // it was rewritten since it was listed
		count = &p.Newer
	case errors.Is(r.err, driver.ErrCorruptRecord):
		count, reason = &p.Corrupt, r.err.Error()
	case errors.Is(r.err, idem.ErrForeignDomain):
		reason = "it ran under a lock of another domain; see idemctl store retire"
	case errors.Is(r.err, errRunsAgain):
		count = &p.Left
	case errors.Is(r.err, errBusy):
		count, pause, p.Err = &p.Deferred, mostFailed, r.err
	case errors.Is(r.err, driver.ErrLocked):
		count, pause = &p.Held, mostHeld
	case r.err != nil:
		count, pause, p.Err = &p.Failed, mostFailed, r.err
	case r.state == driver.StateUnknown:
		reason = r.reason
	case r.state == driver.StateCompleted:
		count = &p.Applied
	default:
		count = &p.Released
	}
	*count++
	if reason != "" {
		s.queue(ctx, r, reason, p)
	}
	r.attempt.next = time.Now().Add(min(r.attempt.pause, pause))
	r.attempt.pause = min(2*r.attempt.pause, s.cfg.maxBackoff)
}
