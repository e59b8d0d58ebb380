package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
)

var (
	errNotConnected = errors.New("zookeeper: not connected")
	errNotConfirmed = errors.New("zookeeper: connection not confirmed yet")
	errExpired      = errors.New("zookeeper: session expired")
	errNoMember     = errors.New("zookeeper: the session's member znode is gone")
	errGivenUp      = errors.New("zookeeper: session was given up, nothing was acknowledged for too long")
	errClosed       = errors.New("zookeeper: client is closed")
	errAbandoned    = errors.New("zookeeper: client was abandoned")
)

// session is one ZooKeeper session and the one zk.Conn that ever speaks for it.
// Its states:
//
//	starting ──▶ up ◀──▶ suspended ──▶ over
//	              └────────────────────▲
//
// It is up while it is connected, a pinned write was acknowledged over the
// present connection, and trust has not run out. Suspended, it takes no new
// requests from callers, but goes on to settle what is open. It is over for
// good when the server said so, when its member znode is gone, or on Close.
//
// mu guards everything below it. It is never held across a call to ZooKeeper or
// to the logger: the library's callbacks take it, and so does the timer that
// ends the leases, which must not wait for a full pipe.
type session struct {
	client *Client
	cfg    *Config
	log    *slog.Logger
	tr     *transport
	conn   *zk.Conn
	ended  <-chan zk.Event // closed when the library's goroutines have stopped
	w      *writer
	domain string
	reads  chan struct{} // semaphore
	poke   chan struct{} // wakes the pulse
	over   chan struct{} // closed when the session is over
	wg     sync.WaitGroup

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at every change of state
	id        int64
	gen       uint64 // counts connections
	adopted   bool   // it is the client's, whose listeners are told of it
	linked    bool   // the library has the session over the present connection
	connected bool   // and may be given requests
	confirmed bool   // a write was acknowledged over this connection
	lapsed    bool   // trust ran out and was not renewed yet
	lapses    int
	why       error
	clock     clock
	timer     *time.Timer // armed at clock.deadline()
	slots     map[string]*slot
	frees     uint64 // slots that were given up; guarded by mu
	held      int    // leases that are trusted
	watches   map[string]*watch
	barriers  []chan struct{}
	parents   lockParents
}

func newSession(c *Client) *session {
	s := &session{
		client:  c,
		cfg:     &c.cfg,
		log:     c.cfg.Logger,
		reads:   make(chan struct{}, 16),
		poke:    make(chan struct{}, 1),
		over:    make(chan struct{}),
		changed: make(chan struct{}),
		clock:   clock{timeout: c.cfg.SessionTimeout, tick: c.cfg.TickTime},
		slots:   make(map[string]*slot),
		watches: make(map[string]*watch),
		parents: newLockParents(),
	}
	s.tr = newTransport(&c.cfg, s.onWatchesSent)
	return s
}

// die ends the session. All its leases are lost before die returns; what the
// server knows of it is cleaned up by shutdown.
func (s *session) die(why error) {
	s.mu.Lock()
	if s.why != nil {
		s.mu.Unlock()
		return
	}
	s.why = why
	s.linked, s.connected, s.confirmed = false, false, false
	if s.timer != nil {
		s.timer.Stop()
	}
	s.loseAll(fmt.Errorf("%w: %w", idem.ErrLeaseLost, why))
	s.fireAll()
	s.broadcast()
	close(s.over)
	s.mu.Unlock()
}

// usable returns nil when callers may be served.
func (s *session) usable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trouble(true)
}

// trouble says why callers cannot be served; those that wait already are
// patient until trust has run out. Needs mu.
func (s *session) trouble(fresh bool) error {
	switch {
	case s.why != nil:
		return s.why
	case s.lapsed:
		return errors.New("zookeeper: no answer from the quorum")
	case fresh && !s.connected:
		if err := s.tr.failure(); err != nil {
			return fmt.Errorf("%w: %w", errNotConnected, err)
		}
		return errNotConnected
	case fresh && !s.confirmed:
		return errNotConfirmed
	}
	return nil
}

// awaitUp waits until the session is up, for callers: no longer than it may yet
// be trusted.
func (s *session) awaitUp(ctx context.Context) error {
	for {
		s.mu.Lock()
		err, up, changed := s.trouble(false), s.trouble(true) == nil, s.changed
		s.mu.Unlock()
		if err != nil || up {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// settled waits until the session is up or over, for what must not give up.
func (s *session) settled() error {
	for {
		s.mu.Lock()
		err, up, changed := s.why, s.trouble(true) == nil, s.changed
		s.mu.Unlock()
		if err != nil || up {
			return err
		}
		select {
		case <-changed:
		case <-s.over:
		}
	}
}

// start runs f on a goroutine that shutdown waits for. It does nothing, and
// returns false, when the session is over.
func (s *session) start(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return false
	}
	s.wg.Go(f)
	return true
}

// broadcast wakes all who look at the state, and has the application told. Needs
// mu.
func (s *session) broadcast() {
	s.tell()
	close(s.changed)
	s.changed = make(chan struct{})
}

// connection returns the number of the present connection. There being none is
// an error: a request would wait in the library's queue, and be sent who knows
// when.
func (s *session) connection() (gen uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.connected {
		return 0, errNotConnected
	}
	return s.gen, nil
}

func (s *session) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

func (s *session) isOver() bool { return s.reason() != nil }

// shutdown stops everything that a session that is over has running. A polite
// one tells the server, which then removes all its ephemeral znodes at once.
func (s *session) shutdown(polite bool) {
	if !polite {
		s.tr.shut()
	}
	s.conn.Close() // takes up to a second when nobody answers
	s.tr.shut()
	for range s.ended {
	}
	s.w.wg.Wait()
	s.wg.Wait()
}

func hexID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }
