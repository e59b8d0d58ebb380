package zookeeper

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// maxTries bounds how often one TryAcquire sends its create: after a missing
// parent, an orphan, a holder that left, a lost reply.
const maxTries = 8

// attempt is the making of one ephemeral znode that a Lease is to stand for. It
// is seen through when its caller has gone: then what it made is undone. Where its
// first create settles it, which is nearly always, that takes no goroutine.
type attempt struct {
	s      *locks
	slot   *slot
	create func(*attempt) (czxid int64, err error)
	first  *zk.CreateRequest // what create begins with; nil if that needs to wait
	bold   bool              // first is sent without knowing whether it has a parent
	early  *session.Result   // of first, until create has it
	place  *place            // in a line; nil for a plain lock
	marks  marks             // of a plain lock
	began  leaseclock.Instant
	done   chan struct{} // closed when lease and err are set

	abandoned bool // guarded by s.mu, like the next two
	lease     *Lease
	err       error
}

// acquire makes a plain lock in a slot that the caller has claimed.
func (s *locks) acquire(ctx context.Context, sl *slot, o owner, marking bool) (*Lease, error) {
	a := &attempt{
		slot: sl, marks: marks{on: marking, owner: o.encode()},
		create: func(a *attempt) (int64, error) {
			if a.first == nil {
				s.parentFor(sl.path)
			}
			return a.createLock(o)
		},
	}
	first := s.lookAtParents()
	if !s.parentAbsent(sl.path) { // else it would be refused
		a.first, a.bold = s.lockAt(sl.znode(), a.marks.owner), !s.lookedAtParents()
	}
	lease, err := s.attempt(ctx, a)
	if first {
		s.parentsAhead()
	}
	return lease, err
}

// attempt runs an attempt and returns when it is over, ctx has ended, or the
// session can no longer be trusted.
func (s *locks) attempt(ctx context.Context, a *attempt) (*Lease, error) {
	a.s, a.began, a.done = s, s.cfg.now(), make(chan struct{})
	s.client.keeper.Background.Add()
	if !a.start() {
		s.client.keeper.Background.Done()
		s.free(a.slot)
		return nil, fmt.Errorf("%w: %w", idem.ErrUnavailable, s.Err())
	}
	if err := s.Await(ctx, a.done); err != nil {
		return a.leave(err)
	}
	return a.lease, a.err
}

// leave abandons the attempt, unless it is over: then its result counts.
func (a *attempt) leave(why error) (*Lease, error) {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	select {
	case <-a.done:
		return a.lease, a.err
	default:
	}
	a.abandoned = true
	a.slot.phase = releasing
	return nil, fmt.Errorf("acquire: %w", why)
}

func (a *attempt) gone() bool {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	return a.abandoned
}

// start sets the attempt going, unless the session is over.
func (a *attempt) start() bool {
	s := a.s
	if a.first == nil {
		return s.Go(a.run)
	}
	return s.Ask(a.request(a.first), a.answered)
}

// answered goes on with the answer to the first create: on the writer's goroutine
// as long as there is nothing to wait for.
func (a *attempt) answered(r session.Result) {
	a.early = &r
	switch r.Outcome {
	case session.Applied, session.Unsent, session.Ended:
		a.run()
	default:
		a.s.further(a.run)
	}
}

// further runs what may have to wait, and gives up by itself when the session is
// over.
func (s *locks) further(f func()) {
	if !s.Go(f) {
		go f() // returns at once
	}
}

// send makes a pinned write, unless that has been done: see first.
func (a *attempt) send(op *zk.CreateRequest) session.Result {
	if r := a.early; r != nil {
		a.early = nil
		return *r
	}
	return a.s.Do(a.request(op))
}

// request is a create as it is sent. Two places in one line never share a transaction,
// since the fences of their leases have to differ.
func (a *attempt) request(op *zk.CreateRequest) session.Request {
	r := session.Request{Ops: []any{op}, Hopeful: a.bold}
	if a.place != nil {
		r.Group = a.place.line.path
	}
	return r
}

// run makes the znode and hands it to the caller.
func (a *attempt) run() {
	czxid, err := a.create(a)
	switch {
	case err != nil:
		a.fail(err)
	case a.grant(czxid):
		a.s.client.keeper.Background.Done()
	default: // nobody wants it any more, or it came too late to be trusted
		a.s.mu.Lock()
		a.slot.phase = releasing
		a.s.mu.Unlock()
		a.s.further(func() { a.undo(czxid) })
	}
}

func (a *attempt) undo(czxid int64) {
	if gone := a.s.remove(a.slot.znode(), czxid, a.place == nil && a.s.cfg.now().Sub(a.began) > young); gone != nil {
		a.s.log.Warn("zookeeper: abandoned lock left to the end of its session", "path", a.slot.znode(), "error", gone)
	}
	a.fail(fmt.Errorf("%w: the lock came too late", idem.ErrUnavailable))
}

// fail ends an attempt that has left nothing behind.
func (a *attempt) fail(err error) {
	defer a.s.client.keeper.Background.Done()
	a.s.free(a.slot)
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.err = err
	close(a.done)
}

// grant hands the lock to the caller if that is still waiting and the session
// can be trusted.
func (a *attempt) grant(czxid int64) bool {
	s := a.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.abandoned {
		return false
	}
	l := &Lease{
		s: s, slot: a.slot, place: a.place, marks: a.marks, czxid: czxid, taken: a.began,
		fence: s.fence(czxid),
		done:  make(chan struct{}),
		gone:  make(chan struct{}),
	}
	if l.hold = s.Hold(l.lost, l.overdue); l.hold == nil {
		return false
	}
	a.slot.phase, a.slot.lease = holding, l
	a.lease = l
	close(a.done)
	return true
}

// fence is that of a znode.
func (s *locks) fence(czxid int64) idem.Fence {
	return idem.Fence{Domain: s.domain, Token: uint64(czxid)}
}
