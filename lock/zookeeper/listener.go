package zookeeper

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// listeners is a client's share in the listeners of the application: their
// goroutines belong to it, and it ends them.
type listeners struct {
	log  *slog.Logger
	busy *tracker // mailboxes that have a goroutine, and who is telling several events

	mu   sync.Mutex
	deaf bool // no listener is called any more
}

func newListeners(log *slog.Logger) *listeners { return &listeners{log: log, busy: newTracker()} }

// lastWords is how long listeners get for the events of a client's end where
// the context of Close has ended already, and with Abandon, which has none.
const lastWords = time.Second

// close waits until all events are delivered, and drops what is not delivered
// in time: when ctx has ended, and lastWords have passed. What is posted while it
// waits is waited for as well; afterwards nothing is delivered any more.
func (ls *listeners) close(ctx context.Context) (err error) {
	for late := (<-chan time.Time)(nil); !ls.silence(err != nil); {
		idle, ended := ls.busy.idle(), ctx.Done()
		if late != nil {
			ended = nil
		}
		select {
		case <-idle:
		case <-ended:
			late = time.After(lastWords)
		case <-late:
			err = fmt.Errorf("zookeeper: a listener has not returned: %w", context.Cause(ctx))
		}
	}
	return err
}

// silence has no listener called any more. Unless it is forced it is refused
// while there is something to deliver, so that nothing comes in between.
func (ls *listeners) silence(forced bool) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	select {
	case <-ls.busy.idle():
		ls.deaf = true
	default:
		ls.deaf = ls.deaf || forced
	}
	return ls.deaf
}

// enter keeps close waiting until leave: for a goroutine that delivers, or for
// events that belong together. It is false when nothing is delivered any more.
func (ls *listeners) enter() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.deaf {
		return false
	}
	ls.busy.add()
	return true
}

func (ls *listeners) leave() { ls.busy.done() }

func (ls *listeners) gone() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.deaf
}

// mailbox takes events for one listener, without limit and without waiting, and
// hands them over one at a time, in their order, on a goroutine that is there
// only as long as there are any.
type mailbox[T any] struct {
	of   *listeners
	call func(T)

	mu      sync.Mutex
	queue   []T
	latest  T    // posted; the zero value before
	open    bool // there is a goroutine
	stopped bool
}

func newMailbox[T any](of *listeners, call func(T)) *mailbox[T] {
	return &mailbox[T]{of: of, call: call}
}

// post may be called with any lock held.
func (m *mailbox[T]) post(ev T) {
	m.postAfter(ev, func(T) bool { return true })
}

// postAfter posts an event only if it may follow the one posted last.
func (m *mailbox[T]) postAfter(ev T, follows func(latest T) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped || !follows(m.latest) {
		return false
	}
	if !m.open {
		if !m.of.enter() {
			return false
		}
		m.open = true
		go m.deliver()
	}
	m.queue, m.latest = append(m.queue, ev), ev
	return true
}

// stop drops what has not been delivered, and all that comes.
func (m *mailbox[T]) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped, m.queue = true, nil
}

func (m *mailbox[T]) deliver() {
	defer m.of.leave()
	for {
		ev, ok := m.next()
		if !ok {
			return
		}
		m.hand(ev)
	}
}

func (m *mailbox[T]) next() (ev T, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) == 0 || m.of.gone() {
		m.queue, m.open = nil, false
		return ev, false
	}
	ev, m.queue = m.queue[0], m.queue[1:]
	return ev, true
}

func (m *mailbox[T]) hand(ev T) {
	defer func() {
		if p := recover(); p != nil {
			m.of.log.Error("zookeeper: a listener panicked", "event", fmt.Sprintf("%+v", ev), "panic", p)
		}
	}()
	m.call(ev)
}
