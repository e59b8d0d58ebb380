package zookeeper

import (
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
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
	Path  string     // as given to Client.Mutex
	Fence idem.Fence // which lease of the lock it is
	Err   error      // of LockLost: wraps idem.ErrLeaseLost
}

// MutexOption changes what [Client.Mutex] returns. A nil option does nothing.
type MutexOption func(*Mutex)

// WithListener has f called with the events of every lease of this Mutex: that
// it was acquired, and then that it was released or lost. Of one lease, and of
// one Mutex, they come in the order in which they happened, one at a time, on a
// goroutine that is not the session's: a listener may be slow, events wait for
// it without limit, and one that panics is logged and called for the next event
// all the same. It may use the client, but not close it. [Client.Close] waits
// for it; nothing is delivered after that.
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
			m.listeners = append(m.listeners, newMailbox(m.ln.c.listeners, f))
		}
	}
}

// tell has the listeners told of a lease that was just acquired, and of its
// end.
func (m *Mutex) tell(l *Lease) {
	if len(m.listeners) == 0 {
		return
	}
	ev := LockEvent{State: LockAcquired, Path: m.ln.name, Fence: l.fence}
	m.post(ev)
	l.onEnd(func(err error) {
		ev.State, ev.Err = LockReleased, err
		if err != nil {
			ev.State = LockLost
		}
		m.post(ev)
	})
	l.attend()
}

func (m *Mutex) post(ev LockEvent) {
	for _, box := range m.listeners {
		box.post(ev)
	}
}
