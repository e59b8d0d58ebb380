// Package listener calls functions of the application that want to hear of events. Each
// has a mailbox, so that a slow one holds up neither the session nor the others.
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
	busy background.Tracker // mailboxes that have a goroutine, and calls between Enter and Leave

	mu   sync.Mutex
	deaf bool // no listener is called any more
}

// NewGroup returns a group that logs the panics of its listeners.
func NewGroup(log *slog.Logger) *Group { return &Group{log: log} }

// lastWords is how long listeners get for the events of a client's end if the context of
// Close has ended already.
const lastWords = time.Second

// Close waits until all events are delivered, those included that are posted meanwhile.
// When ctx has ended and lastWords have passed, it drops the others. Afterwards nothing
// is delivered any more.
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

// silence stops the calls of listeners. Unless it is forced it does so only when there is
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

// Enter makes Close wait until Leave: for a goroutine that delivers, or for events that
// belong together. It is false when nothing is delivered any more.
func (g *Group) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.deaf {
		return false
	}
	g.busy.Add()
	return true
}

// Leave ends what Enter began.
func (g *Group) Leave() { g.busy.Done() }

func (g *Group) gone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.deaf
}

// Mailbox takes events for one listener, without limit and without waiting. It hands them
// over one at a time and in order, on a goroutine that exists only while there are any.
type Mailbox[T any] struct {
	of   *Group
	call func(T)

	mu      sync.Mutex
	queue   []T
	latest  T    // posted; the zero value before
	open    bool // there is a goroutine
	stopped bool
}

// NewMailbox returns the mailbox of a function.
func NewMailbox[T any](of *Group, call func(T)) *Mailbox[T] {
	return &Mailbox[T]{of: of, call: call}
}

// Post adds an event. It may be called with any lock held.
func (m *Mailbox[T]) Post(ev T) {
	m.PostAfter(ev, func(T) bool { return true })
}

// PostAfter adds an event only if it may follow the one that was added last.
func (m *Mailbox[T]) PostAfter(ev T, follows func(latest T) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped || !follows(m.latest) {
		return false
	}
	if !m.open {
		if !m.of.Enter() {
			return false
		}
		m.open = true
		go m.deliver()
	}
	m.queue, m.latest = append(m.queue, ev), ev
	return true
}

// Stop drops the events that have not been delivered, and all later ones.
func (m *Mailbox[T]) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped, m.queue = true, nil
}

func (m *Mailbox[T]) deliver() {
	defer m.of.Leave()
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
