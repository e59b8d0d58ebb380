package recipes

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
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
// caller only observes.
func NewElection(in zookeeper.Root, path, candidate string, opts ...Option) *Election {
	ln := newLineup(in, path, opts...)
	ln.candidate = candidate
	return &Election{ln}
}

// Campaign stands for election and waits until it is won. If the candidate loses its place,
// for example with the session, it stands again as [zookeeper.Config].Retry allows. The fence
// of the lease is greater than those of all leaders before. Releasing the lease resigns.
//
// The error wraps idem.ErrLocked if ctx ended while other candidates were in front. It wraps
// idem.ErrUnavailable if ZooKeeper could not be asked. Both also wrap the cause of ctx if ctx
// has ended. The candidate is withdrawn in the background.
func (e *Election) Campaign(ctx context.Context) (*Lease, error) {
	name := e.ln.candidate
	if name == "" || len(name) > maxCandidate || !utf8.ValidString(name) {
		return nil, fmt.Errorf("zookeeper: a candidate needs a name, of %d bytes of UTF-8 at most", maxCandidate)
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
// If the office was lost before fn returned, the error wraps idem.ErrLeaseLost and fn's own
// error. If it was not elected, the error is that of Campaign. A nil fn is refused at once.
//
// To stand again and again:
//
//	for ctx.Err() == nil {
//		if err := election.RunAsLeader(ctx, lead); err != nil {
//			log.Print(err) // and wait a while, because fn may fail at once
//		}
//	}
func (e *Election) RunAsLeader(ctx context.Context, fn func(ctx context.Context, fence idem.Fence) error) error {
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

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leader.Table().Timeout())
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
// lease was released. If the lease was lost, the cause wraps idem.ErrLeaseLost, and the context
// ends before another client can have the lock, as far as a running process can tell. The
// context ends with parent as well.
func (l *Lease) Context(parent context.Context) context.Context {
	// Cancelling a context calls methods of its parent, which may be the caller's own code.
	// OnEnd must not do that, so there is a context in between.
	between, release := context.WithCancel(parent)
	ctx, cancel := context.WithCancelCause(between)
	forget := l.OnEnd(cancel) // nil stands for context.Canceled
	context.AfterFunc(ctx, func() {
		forget()
		release()
	})
	return ctx
}

// Leader returns the present leader, or ErrNoLeader. It is the leader for the servers. For at
// most a session time-out it may not know yet, or be gone already.
//
// Other errors wrap idem.ErrUnavailable, and the cause of ctx if ctx has ended.
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
