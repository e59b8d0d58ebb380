package recipes

import (
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/listener"
)

// ElectionState is where a campaign stands.
type ElectionState uint8

const (
	// ElectionCandidate says that a campaign has begun.
	ElectionCandidate ElectionState = iota + 1
	// ElectionLeader says that it was won.
	ElectionLeader
	// ElectionResigned says that the office was given up, or, with an Err, that
	// the campaign was before it was won.
	ElectionResigned
	// ElectionLost says that the office was lost, see [ElectionEvent.Err].
	ElectionLost
)

// String returns "candidate", "leader", "resigned" or "lost".
func (s ElectionState) String() string {
	switch s {
	case ElectionCandidate:
		return "candidate"
	case ElectionLeader:
		return "leader"
	case ElectionResigned:
		return "resigned"
	case ElectionLost:
		return "lost"
	}
	return fmt.Sprintf("ElectionState(%d)", uint8(s))
}

// ElectionEvent is a step of a campaign.
type ElectionEvent struct {
	State     ElectionState
	Path      string     // as given to NewElection
	Candidate string     // likewise
	Fence     idem.Fence // of the office; zero until it was won
	// Err wraps idem.ErrLeaseLost in ElectionLost, and is what Campaign returned
	// where that failed.
	Err error
}

// WithElectionListener has f called with the steps of every campaign of this
// Election. How, and what f may do, is as with [WithListener].
func WithElectionListener(f func(ElectionEvent)) ElectionOption {
	return func(e *Election) {
		if f != nil {
			e.listeners = append(e.listeners, listener.NewMailbox(e.ln.c.Keeper.Listeners, f))
		}
	}
}

// tell has the listeners told of an office that was just won, and of its end. A
// leader always looks after its own znode: should somebody delete that, the
// next candidate believes to be the leader.
func (e *Election) tell(l *Lease) {
	e.post(ElectionEvent{State: ElectionLeader, Fence: l.Fence()})
	l.OnEnd(func(err error) {
		ev := ElectionEvent{State: ElectionResigned, Fence: l.Fence(), Err: err}
		if err != nil {
			ev.State = ElectionLost
		}
		e.post(ev)
	})
	l.attend()
}

func (e *Election) post(ev ElectionEvent) {
	ev.Path, ev.Candidate = e.ln.name, e.candidate
	for _, box := range e.listeners {
		box.Post(ev)
	}
}
