package recipes

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Election chooses one leader at a time among the candidates at a path. The leader is the
// candidate that came first, as in the leader election recipe of ZooKeeper's documentation
// and in Apache Curator's LeaderSelector. It is safe for concurrent use. Each campaign is a
// candidate of its own.
//
//	Campaign ──▶ candidate ──▶ leader ──▶ released
//	                 │            └─────▶ lost
//	                 └──▶ released (its context ended)
//
// No other leader exists as long as the leader's lease is not Done, within the limits that
// package zookeeper names. A process that was paused does not know that its time has passed.
// So the leader's work has to carry the fence.
type Election struct{ ln *lineup }

// ErrNoLeader is returned by [Election.Leader] while there is no leader.
var ErrNoLeader = errors.New("zookeeper: there is no leader")

// candidateRole is the role of places in the line of an election.
const candidateRole = "candidate"

// maxCandidate bounds a candidate's name.
const maxCandidate = 1 << 10

// NewElection returns the election at an absolute path below the chroot. candidate is the name
// that observers see, at most 1 KiB of UTF-8. It need not be unique. It may be empty if the
// caller only observes. The error is that of [NewMutex], or for a name that is longer or no UTF-8.
func NewElection(in zookeeper.Space, path, candidate string, opts ...Option) (*Election, error) {
	ln, err := newLineup(in, path, opts...)
	if err != nil {
		return nil, err
	}
	if len(candidate) > maxCandidate || !utf8.ValidString(candidate) {
		return nil, fmt.Errorf("zookeeper: election %s: the name of a candidate has %d bytes of UTF-8 at most", ln.name, maxCandidate)
	}
	ln.candidate = candidate
	return &Election{ln}, nil
}

// MustNewElection is [NewElection] for known-good wiring. It panics where NewElection returns an error.
func MustNewElection(in zookeeper.Space, path, candidate string, opts ...Option) *Election {
	return held.Must(NewElection(in, path, candidate, opts...))
}

// Campaign stands for election and waits until it is won. If the candidate loses its place,
// for example with the session, it stands again as [zookeeper.Config].Retry allows. The fence
// of the lease is greater than those of all leaders before. Releasing the lease resigns.
//
// The error wraps driver.ErrLocked if ctx ended while other candidates were in front. It wraps
// driver.ErrUnavailable if ZooKeeper could not be asked. Both also wrap the cause of ctx if ctx
// has ended. The candidate is withdrawn in the background.
func (e *Election) Campaign(ctx context.Context) (*Lease, error) {
	if e.ln.candidate == "" {
		return nil, fmt.Errorf("zookeeper: election %s: a candidate needs a name", e.ln.name)
	}
	e.ln.post(Event{State: Candidate})
	lease, err := e.ln.acquire(ctx, candidateRole, first)
	if err != nil {
		e.ln.post(Event{State: Released, Err: err})
		return nil, err
	}
	// A leader always watches its own znode. If an operator deletes it, the next candidate
	// becomes the leader.
	lease.attend()
	return lease, nil
}

// RunAsLeader serves one term. It waits until it is elected, runs fn, resigns when fn returns,
// and returns fn's error. If fn panics, it resigns and the panic goes on.
//
// The context of fn is [Lease.Context]. It ends when the office is lost, and then fn has to
// return soon. RunAsLeader waits for fn however long that takes, so the terms of one loop
// never overlap. Other candidates may be elected meanwhile.
//
// If the office was lost before fn returned, the error wraps driver.ErrLeaseLost and fn's own
// error. If it was not elected, the error is that of Campaign. A nil fn is refused at once.
//
// To stand again and again:
//
//	for ctx.Err() == nil {
//		if err := election.RunAsLeader(ctx, lead); err != nil {
//			log.Print(err) // and wait a while, because fn may fail at once
//		}
//	}
func (e *Election) RunAsLeader(ctx context.Context, fn func(ctx context.Context, fence driver.Fence) error) error {
	if fn == nil {
		return errors.New("zookeeper: RunAsLeader needs a function to run")
	}
	leader, err := e.Campaign(ctx)
	if err != nil {
		return err
	}
	defer leader.ReleaseInBackground() // fn may panic
	err = fn(leader.Context(ctx), leader.Fence())
	lost := leader.Err()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leader.held.Table().Session.Trust.Timeout())
	defer cancel()
	_ = leader.Release(ctx) // without an answer it goes on in the background
	switch {
	case lost == nil:
		return err
	case err == nil:
		return lost
	}
	return fmt.Errorf("%w: %w", lost, err)
}

// Context returns a context that ends with the lease. Its cause is context.Canceled if the
// lease was released. If the lease was lost, the cause wraps driver.ErrLeaseLost, and the context
// ends before another client can have the lock, as far as a running process can tell. The
// context ends with parent as well.
func (l *Lease) Context(parent context.Context) context.Context {
	// Cancelling a context calls methods of its parent, which may be the caller's own code.
	// OnEnd must not do that, so there is a context in between.
	between, release := context.WithCancel(parent)
	ctx, cancel := context.WithCancelCause(between)
	forget := l.held.OnEnd(cancel) // nil stands for context.Canceled
	context.AfterFunc(ctx, func() {
		forget()
		release()
	})
	return ctx
}

// Leader returns the present leader, or ErrNoLeader. It is the leader for the servers. For at
// most a session time-out it may not know yet, or be gone already.
//
// Other errors wrap driver.ErrUnavailable, and the cause of ctx if ctx has ended.
func (e *Election) Leader(ctx context.Context) (Participant, error) {
	them, err := e.ln.participants(ctx, first, 1)
	switch {
	case err != nil:
		return Participant{}, err
	case len(them) == 0:
		return Participant{}, fmt.Errorf("%w: %s", ErrNoLeader, e.ln.name)
	}
	return them[0], nil
}

// Revoke asks the leader to resign, see [Mutex.Revoke] and [Lease.Revoked].
func (e *Election) Revoke(ctx context.Context) error { return e.ln.revoke(ctx) }

// Observe returns a channel with the present leader and then every new one. The zero
// Participant means that there is no leader. The channel goes on over reconnects and lost
// sessions. A slow reader gets the latest leader and misses those before. While there is no
// connection the channel is silent, because an observer cannot tell whether there is another
// leader. See [zookeeper.Client.Watch].
//
// The channel is closed when ctx ends or the client is closed.
func (e *Election) Observe(ctx context.Context) <-chan Participant {
	o := &observer{ln: e.ln, ch: make(chan Participant, 1)}
	if !e.ln.c.Keeper.Go(func() { o.run(ctx) }) {
		close(o.ch)
	}
	return o.ch
}

// observer follows the head of a line, over all sessions of its client.
type observer struct {
	ln   *lineup
	ch   chan Participant // with one element, which is replaced until it is read
	last Participant
	told bool
}

func (o *observer) run(ctx context.Context) {
	defer close(o.ch)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(o.ln.c.Keeper.Context(), cancel)()
	for ctx.Err() == nil && o.ln.c.Keeper.AwaitUsable(ctx) {
		if t, err := o.ln.c.Table(); err == nil && o.look(ctx, t) != nil {
			_ = t.Session.Status.Pause() // if the session is over, AwaitUsable waits for the next one
		}
	}
}

// look tells the head of the line and returns when it may have changed.
func (o *observer) look(ctx context.Context, t *held.Table) error {
	w := t.Session.Watches.Of(o.ln.path, session.OnChildren, nil)
	if !o.wait(ctx, t, w.Armed()) {
		return nil
	}
	list, err := w.Found()
	if err != nil {
		return err
	}
	if !list.Exists { // without a parent there are no children to watch
		w = t.Session.Watches.Of(o.ln.path, session.OnExists, nil)
		if !o.wait(ctx, t, w.Armed()) {
			return nil
		}
		if parent, err := w.Found(); err != nil || parent.Exists {
			return err
		}
	}
	var leader Participant
	if all := line.Sort(list.Names); len(all) > 0 {
		p, ok, err := o.ln.participant(ctx, t, all[0])
		if err != nil {
			return err
		}
		if !ok { // the watch is about to be woken
			o.wait(ctx, t, w.Woken())
			return nil
		}
		p.Holds = true
		leader = p
	}
	o.tell(leader)
	o.wait(ctx, t, w.Woken())
	return nil
}

// wait waits for ch to be closed. It returns false if the session or the observer has ended.
func (o *observer) wait(ctx context.Context, t *held.Table, ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-ctx.Done():
	case <-t.Session.Status.Over():
	}
	return false
}

// tell puts a new leader into the channel, in place of one that has not been read.
func (o *observer) tell(leader Participant) {
	if o.told && leader.Fence == o.last.Fence {
		return
	}
	o.told, o.last = true, leader
	select {
	case <-o.ch:
	default:
	}
	o.ch <- leader
}

// Participants lists the leader and the candidates, see [Mutex.Participants].
func (e *Election) Participants(ctx context.Context) ([]Participant, error) {
	return e.ln.participants(ctx, first, wholeLine)
}
