// Package listener calls functions of the application with events. Each function has a mailbox,
// so a slow one delays neither the session nor the others.
package listener

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/background"
)

// Group is the listeners of one client. It owns their goroutines and ends them.
type Group struct {
	log  *slog.Logger
	busy background.Tracker // counts mailboxes with a goroutine

	mu   sync.Mutex
	deaf bool // no listener is called any more
}

// NewGroup returns a group that logs the panics of its listeners.
func NewGroup(log *slog.Logger) *Group { return &Group{log: log} }

// lastWords is the time for the events of a client's end if the context of Close has ended
// already.
const lastWords = time.Second

// Close waits until all events are delivered, even events posted meanwhile. When ctx has ended
// and lastWords have passed, it drops the others. After Close nothing is delivered.
func (g *Group) Close(ctx context.Context) (err error) {
	for late := (<-chan time.Time)(nil); !g.silence(err != nil); {
		idle, ended := g.busy.Idle(), ctx.Done()
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

// silence ends the calls of listeners. Unless it is forced, it does so only if there is
// nothing to deliver.
func (g *Group) silence(forced bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.busy.Idle():
		g.deaf = true
	default:
		g.deaf = g.deaf || forced
	}
	return g.deaf
}

// enter makes Close wait for a goroutine. It returns false if nothing is delivered any more.
func (g *Group) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.deaf {
		g.busy.Add()
	}
	return !g.deaf
}

func (g *Group) gone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.deaf
}

// Mailbox takes events for one listener, without limit and without waiting. It delivers them
// one at a time and in order, on a goroutine that exists only while there are events.
type Mailbox[T any] struct {
	of   *Group
	call func(T)

	mu      sync.Mutex
	queue   []T
	open    bool // there is a goroutine
	stopped bool
}

// NewMailbox returns the mailbox of a function.
func NewMailbox[T any](of *Group, call func(T)) *Mailbox[T] {
	return &Mailbox[T]{of: of, call: call}
}

// Post adds an event. It may be called with any lock held.
func (m *Mailbox[T]) Post(ev T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped || !m.open && !m.of.enter() {
		return
	}
	m.queue = append(m.queue, ev)
	if !m.open {
		m.open = true
		go m.deliver()
	}
}

// Stop drops all events not yet delivered, and all later ones.
func (m *Mailbox[T]) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped, m.queue = true, nil
}

func (m *Mailbox[T]) deliver() {
	defer m.of.busy.Done()
	for {
		ev, ok := m.next()
		if !ok {
			return
		}
		m.hand(ev)
	}
}

func (m *Mailbox[T]) next() (ev T, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) == 0 || m.of.gone() {
		m.queue, m.open = nil, false
		return ev, false
	}
	ev, m.queue = m.queue[0], m.queue[1:]
	return ev, true
}

func (m *Mailbox[T]) hand(ev T) {
	defer func() {
		if p := recover(); p != nil {
			m.of.log.Error("zookeeper: a listener panicked", "event", fmt.Sprintf("%+v", ev), "panic", p)
		}
	}()
	m.call(ev)
}
