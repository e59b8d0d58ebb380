package recipes

import (
	"fmt"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/listener"
)

// State is the news of an [Event].
type State uint8

const (
	// Candidate is the start of a campaign of an [Election]. A [Mutex] has no such event.
	Candidate State = iota + 1
	// Acquired is the start of a lease. This process has the lock, or has won the election.
	Acquired
	// Released is the end of a lease by its holder. A failed campaign ends with it too,
	// without a fence, and Err is then the error of Campaign.
	Released
	// Lost is the end of a lease without a release. Err wraps driver.ErrLeaseLost.
	Lost
)

// String returns "candidate", "acquired", "released" or "lost".
func (s State) String() string {
	if names := [...]string{"candidate", "acquired", "released", "lost"}; s >= Candidate && s <= Lost {
		return names[s-Candidate]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Event is a change of a lease, or of a campaign.
type Event struct {
	State     State
	Path      string       // as given to the constructor
	Candidate string       // the name given to NewElection
	Fence     driver.Fence // of the lease, zero before its start
	Err       error        // of Lost, and of a failed campaign
}

// Option changes a lock or an election when it is made. A nil option does nothing.
type Option func(*lineup)

// WithListener has f called with the events of every lease and campaign of this object.
//
//   - Events come one at a time, in the order in which they happened, on a goroutine of
//     their own. A slow listener delays no lock. Events wait for it without limit.
//   - A panic of f is logged, and f is called for the next event.
//   - f may use the client, but must not close it. [zookeeper.Client.Close] waits for f, and
//     delivers nothing afterwards.
//   - If a lease ends while Acquire returns it, both of its events may be missing. It never
//     has only one.
//
// An event is news, not a guard. By the time it is delivered, things may be different again.
// If work must stop when the lock is lost, watch [Lease.Done].
//
// A holder with a listener watches its own znode, at the cost of one read for each lease. So
// Lost also comes when an operator deletes the znode by hand.
func WithListener(f func(Event)) Option {
	return func(ln *lineup) {
		if f != nil {
			ln.listeners = append(ln.listeners, listener.NewMailbox(ln.c.Keeper.Listeners, f))
		}
	}
}

// tell posts the start of a new lease to the listeners, and later its end. If the lease has
// ended already, it posts nothing.
func (ln *lineup) tell(l *Lease) {
	if len(ln.listeners) == 0 {
		return
	}
	var mu sync.Mutex // guards told and over
	var told, over bool
	l.held.OnEnd(func(err error) {
		mu.Lock()
		defer mu.Unlock()
		over = true
		if !told {
			return
		}
		ev := Event{State: Released, Fence: l.Fence(), Err: err}
		if err != nil {
			ev.State = Lost
		}
		ln.post(ev)
	})
	mu.Lock()
	if told = !over; told {
		ln.post(Event{State: Acquired, Fence: l.Fence()})
	}
	mu.Unlock()
	if told {
		l.attend() // without mu: the session's lock is taken here, and held at the end of a lease
	}
}

func (ln *lineup) post(ev Event) {
	ev.Path, ev.Candidate = ln.name, ln.candidate
	for _, box := range ln.listeners {
		box.Post(ev)
	}
}
