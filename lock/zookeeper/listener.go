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
	busy *tracker // mailboxes that have a goroutine

	mu   sync.Mutex
	deaf bool // no listener is called any more
}

func newListeners(log *slog.Logger) *listeners { return &listeners{log: log, busy: newTracker()} }

// lastWords is how long listeners get for the events of a client's end where
// the context of Close has ended already, and with Abandon, which has none.
const lastWords = time.Second

// close waits until all events are delivered, and drops what is not delivered
// in time: when ctx has ended, and lastWords have passed.
func (ls *listeners) close(ctx context.Context) (err error) {
	idle := ls.busy.idle()
	select {
	case <-idle:
	case <-ctx.Done():
		select {
		case <-idle:
		case <-time.After(lastWords):
			err = fmt.Errorf("zookeeper: a listener has not returned: %w", context.Cause(ctx))
		}
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.deaf = true
	return err
}

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
	open    bool // there is a goroutine
	stopped bool
}

func newMailbox[T any](of *listeners, call func(T)) *mailbox[T] {
	return &mailbox[T]{of: of, call: call}
}

// post may be called with any lock held.
func (m *mailbox[T]) post(ev T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return
	}
	m.queue = append(m.queue, ev)
	if !m.open {
		m.open = true
		m.of.busy.add()
		go m.deliver()
	}
}

// stop drops what has not been delivered, and all that comes.
func (m *mailbox[T]) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped, m.queue = true, nil
}

func (m *mailbox[T]) deliver() {
	defer m.of.busy.done()
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
