package session

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/wire"
)

// Status is the state of a session. It says whether the session is over, connected and
// trusted. mu guards all of it, and also the lease clock (trust.go).
type Status struct {
	log  *slog.Logger
	now  leaseclock.Source
	tr   *wire.Transport
	over chan struct{} // closed when the session is over
	wg   sync.WaitGroup

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at every change
	tell      func(Event)   // nil until the keeper wants to know
	id        int64
	gen       uint64    // counts connections
	since     time.Time // when the library had the session over the present connection
	connected bool      // the library has the session over the present connection
	confirmed bool      // a pinned write was acknowledged over it
	lapsed    bool      // trust ran out and was not renewed yet
	why       error     // the session is over
}

// ID is the server's name for the session.
func (s *Status) ID() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// Over is closed when the session is over.
func (s *Status) Over() <-chan struct{} { return s.over }

// Err is why the session is over, or nil.
func (s *Status) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// Usable returns nil if callers may be served now.
func (s *Status) Usable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trouble(true)
}

// trouble says why callers cannot be served. New calls need a confirmed connection.
// Calls under way are patient until trust has run out. Needs mu.
func (s *Status) trouble(fresh bool) error {
	switch {
	case s.why != nil:
		return s.why
	case s.lapsed:
		return errNoQuorum
	case fresh && !s.connected:
		if err := s.tr.Failure(); err != nil {
			return fmt.Errorf("%w: %w", errNotConnected, err)
		}
		return errNotConnected
	case fresh && !s.confirmed:
		return errNotConfirmed
	}
	return nil
}

// await waits until ready reports true or an error, or ctx ends. ready is called with mu
// held.
func (s *Status) await(ctx context.Context, ready func() (bool, error)) error {
	for {
		s.mu.Lock()
		ok, err := ready()
		changed := s.changed
		s.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// AwaitUp waits until callers can be served. It fails when ctx ends, and when the
// session cannot be trusted any more.
func (s *Status) AwaitUp(ctx context.Context) error {
	return s.await(ctx, func() (bool, error) { return s.trouble(true) == nil, s.trouble(false) })
}

// Await waits for a channel. It fails with driver.ErrUnavailable when ctx ends, and when
// the session cannot be trusted any more.
func (s *Status) Await(ctx context.Context, ch <-chan struct{}) error {
	for {
		s.mu.Lock()
		err, changed := s.trouble(false), s.changed
		s.mu.Unlock()
		select {
		case <-ch: // it counts, even if trust has run out since
			return nil
		default:
		}
		if err == nil {
			select {
			case <-ch:
				return nil
			case <-changed:
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
}

// Settled waits until callers can be served or the session is over. It is for work that
// must not give up.
func (s *Status) Settled() error {
	return s.await(context.Background(), func() (bool, error) { return s.trouble(true) == nil, s.why })
}

// Retry waits until another try of a request makes sense: Settled, and then a short
// random pause. It fails when the session is over.
func (s *Status) Retry() error {
	if err := s.Settled(); err != nil {
		return err
	}
	return s.Pause()
}

// Pause waits for a short random time. It fails when the session is over.
func (s *Status) Pause() error {
	select {
	case <-time.After(5*time.Millisecond + rand.N(20*time.Millisecond)):
		return nil
	case <-s.over:
		return s.Err()
	}
}

// Go runs f on a goroutine. The session waits for it when it shuts down. Go returns
// false, and does nothing, when the session is over.
func (s *Status) Go(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return false
	}
	s.wg.Go(f)
	return true
}

// broadcast wakes the goroutines that wait for a change, and tells the keeper. It runs
// at every change, with mu held, so that no event is missed and all are in order.
// Needs mu.
func (s *Status) broadcast() {
	if s.tell != nil {
		s.tell(eventOf(s))
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// eventOf is the present state as an event. Needs mu.
func eventOf(s *Status) Event {
	err := s.trouble(true)
	ev := Event{State: Reconnected, Session: hexID(s.id), At: time.Now(), Err: err}
	switch {
	case err == nil:
	case s.why != nil || s.lapsed:
		ev.State = Lost
	default:
		ev.State = Suspended
	}
	return ev
}

// announce begins to tell of the session. First it tells that the session is connected,
// then the present state, and from then on every change.
func (s *Status) announce(tell func(Event)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell = tell
	tell(Event{State: Connected, Session: hexID(s.id), At: time.Now()})
	tell(eventOf(s))
}

func hexID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }
