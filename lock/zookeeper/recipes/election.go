package recipes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/listener"
)

// Election chooses one leader at a time among the candidates at a path: the one
// whose candidacy is the oldest, as in the leader election recipe of ZooKeeper's
// documentation and Apache Curator's LeaderSelector. It is safe for concurrent
// use; each campaign is a candidacy of its own.
//
//	Campaign ──▶ candidate ──▶ leader ──▶ resigned
//	                 │            └─────▶ lost
//	                 └──▶ resigned (its context ended)
//
// A leader can be sure that there is no other as long as its lease is not Done,
// with the limits that the package comment names: a process that was paused does
// not know that its time has passed. So what it does has to carry the fence.
type Election struct {
	ln        *lineup
	candidate string
	listeners []*listener.Mailbox[ElectionEvent]
}

// ElectionOption changes what [NewElection] returns. A nil option does
// nothing.
type ElectionOption func(*Election)

// NewElection returns the election at an absolute path below the chroot, for a
// candidate of this name: not empty, 1 KiB of UTF-8 at most. It is shown to
// observers, and need not be unique. Who only observes may leave it empty.
func NewElection(in zookeeper.Root, path, candidate string, opts ...ElectionOption) *Election {
	e := &Election{ln: newLineup(in, path), candidate: candidate}
	for _, opt := range opts {
		if opt != nil {
			opt(e)
		}
	}
	return e
}

// maxCandidate bounds a candidate's name.
const maxCandidate = 1 << 10

// Campaign stands for election and waits until it is won. When the candidacy is
// lost, with a session that is over for one, it stands again as [Config].Retry
// allows.
//
// The error wraps idem.ErrLocked where ctx ended while others were in front, and
// idem.ErrUnavailable where ZooKeeper could not be asked; with either the cause
// of ctx, if it has ended. The candidacy is withdrawn, in the background.
func (e *Election) Campaign(ctx context.Context) (*Leadership, error) {
	if e.candidate == "" || len(e.candidate) > maxCandidate || !utf8.ValidString(e.candidate) {
		return nil, fmt.Errorf("zookeeper: a candidate needs a name, of %d bytes of UTF-8 at most", maxCandidate)
	}
	e.post(ElectionEvent{State: ElectionCandidate})
	lease, err := e.ln.acquire(ctx, candidateRole, candidacyOf(e.ln.c, e.candidate), first)
	if err != nil {
		e.post(ElectionEvent{State: ElectionResigned, Err: err})
		return nil, err
	}
	e.tell(lease)
	return &Leadership{lease}, nil
}

// RunAsLeader serves one term: it waits until it is elected, runs fn, resigns
// when fn returns, and returns fn's error. Should fn panic it resigns, and the
// panic goes on.
//
// The context of fn is [Leadership.Context]: it ends when the office is lost. fn
// has to return soon then; RunAsLeader waits for it however long that takes, so
// that no two terms of one loop ever overlap. Others may be elected meanwhile.
// The error wraps idem.ErrLeaseLost when the office was lost before fn returned,
// and fn's own besides. Where it was not elected the errors are those of
// Campaign. A nil fn is refused before that.
//
// To stand again and again:
//
//	for ctx.Err() == nil {
//		if err := election.RunAsLeader(ctx, lead); err != nil {
//			log.Print(err) // and wait a while: it comes at once where fn fails at once
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
	_ = leader.Resign(ctx) // what was not acknowledged goes on in the background
	switch {
	case lost == nil:
		return err
	case err == nil:
		return lost
	}
	return fmt.Errorf("%w: %w", lost, err)
}

// Leadership is an office that was won: a [Lease] whose fence is greater than
// those of all leaders before. It is safe for concurrent use.
type Leadership struct{ *Lease }

// Context returns a context that is cancelled when the office is given up, with
// the cause context.Canceled, or lost, with a cause that wraps idem.ErrLeaseLost:
// before another leader can be elected, as far as a running process can tell. It
// ends with parent as well.
func (l *Leadership) Context(parent context.Context) context.Context {
	// To cancel a context is to call methods of its parent's, which may be the
	// caller's own code, and OnEnd must not: so there is one in between.
	between, release := context.WithCancel(parent)
	ctx, cancel := context.WithCancelCause(between)
	forget := l.OnEnd(cancel) // of nil, it is context.Canceled
	context.AfterFunc(ctx, func() {
		forget()
		release()
	})
	return ctx
}

// Resign gives up the office, as Release does.
func (l *Leadership) Resign(ctx context.Context) error { return l.Release(ctx) }

// candidateRole is the role of places in the line of an election.
const candidateRole = "candidate"

// candidacy is the data of a candidate's place.
type candidacy struct {
	held.Owner

	Candidate string `json:"candidate,omitempty"`
}

func candidacyOf(c *held.Client, candidate string) []byte {
	data, err := json.Marshal(candidacy{c.Owned(candidate), candidate})
	if err != nil {
		panic("zookeeper: strings and ints always marshal: " + err.Error())
	}
	return data
}

// parseCandidacy reads the data of a place, of whatever kind.
func parseCandidacy(data []byte) candidacy {
	var o candidacy
	if json.Unmarshal(data, &o) != nil {
		return candidacy{}
	}
	return o
}

// Participants lists the leader and the candidates, see [Mutex.Participants].
func (e *Election) Participants(ctx context.Context) ([]Participant, error) {
	return e.ln.participants(ctx, first)
}

// Revoke asks the leader to resign, see [Mutex.Revoke] and [Lease.Revoked].
func (e *Election) Revoke(ctx context.Context) error { return e.ln.revoke(ctx) }
