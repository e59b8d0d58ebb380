package recipes

import (
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/listener"
)

// LockState is what a [LockEvent] tells.
type LockState uint8

const (
	// LockAcquired says that this process has the lock.
	LockAcquired LockState = iota + 1
	// LockReleased says that the holder gave it back. It is about to be free.
	LockReleased
	// LockLost says that the lease ended without that: see [LockEvent.Err].
	LockLost
)

// String returns "acquired", "released" or "lost".
func (s LockState) String() string {
	switch s {
	case LockAcquired:
		return "acquired"
	case LockReleased:
		return "released"
	case LockLost:
		return "lost"
	}
	return fmt.Sprintf("LockState(%d)", uint8(s))
}

// LockEvent is what happened to a lease of a lock.
type LockEvent struct {
	State LockState
	Path  string     // as given to NewMutex
	Fence idem.Fence // which lease of the lock it is
	Err   error      // of LockLost: wraps idem.ErrLeaseLost
}

// MutexOption changes what [NewMutex] returns. A nil option does nothing.
type MutexOption func(*Mutex)

// WithListener has f called with the events of every lease of this Mutex: that
// it was acquired, and then that it was released or lost. Of one lease, and of
// one Mutex, they come in the order in which they happened, one at a time, on a
// goroutine that is not the session's: a listener may be slow, events wait for
// it without limit, and one that panics is logged and called for the next event
// all the same. It may use the client, but not close it. [zookeeper.Client.Close] waits
// for it; nothing is delivered after that. A lease that is lost while Acquire
// returns it, or that Close ends at that moment, may not be told of at all; none
// is told of by half.
//
// An event is news, not a guard: when it is delivered, things may be different
// again. What must stop when the lock is lost watches [Lease.Done].
//
// A holder with a listener watches its own znode, which is one more read for
// each lease, so that LockLost also tells of a znode that was deleted by hand.
// Without a listener that is noticed at Check and at Release.
func WithListener(f func(LockEvent)) MutexOption {
	return func(m *Mutex) {
		if f != nil {
			m.listeners = append(m.listeners, listener.NewMailbox(m.ln.c.Keeper.Listeners, f))
		}
	}
}

// tell has the listeners told of a lease that was just acquired, and of its
// end: of both or, where the client is closed, of neither.
func (m *Mutex) tell(l *Lease) {
	if len(m.listeners) == 0 || !m.ln.c.Keeper.Listeners.Enter() {
		return
	}
	defer m.ln.c.Keeper.Listeners.Leave()
	ev := LockEvent{State: LockAcquired, Path: m.ln.name, Fence: l.Fence()}
	told := make([]*listener.Mailbox[LockEvent], 0, len(m.listeners))
	for _, box := range m.listeners {
		if box.PostAfter(ev, ev.follows) {
			told = append(told, box)
		}
	}
	if len(told) == 0 {
		return
	}
	l.OnEnd(func(err error) {
		ev.State, ev.Err = LockReleased, err
		if err != nil {
			ev.State = LockLost
		}
		for _, box := range told {
			box.Post(ev)
		}
	})
	l.attend()
}

// follows says that a lease is not one that was lost, and had by somebody else
// since, before it could be told of. There are no two at a time, so the later
// one of a domain has the greater fence.
func (ev LockEvent) follows(latest LockEvent) bool {
	return latest.Fence.Domain != ev.Fence.Domain || latest.Fence.Before(ev.Fence)
}
