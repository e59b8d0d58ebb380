// Package simstore is a token store that fails as a Redis with replicas does. It is for
// simulations in a bubble of testing/synctest.
//
// A [Server] keeps a log of its changes. FallBack drops the latest ones, as the promotion
// of a stale replica does. LoseAll drops all of them, and the server refuses what its
// clients ask until the loss is accepted. A [Client] reaches the server over the network,
// which delays, loses and repeats calls.
//
// The rules of the records are those of tokenstore/memory, which passes the suite of
// idem/idemtest. The scripts of tokenstore/redis are not simulated.
//
// The server has locks, too, and a client can take and give back one in the same call as its record. A [Locker]
// keeps them as lock/redis does. A fail-over loses the latest locks together with the records.
package simstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// Server is the token store's server. It is safe for concurrent use.
type Server struct {
	// Changed, if not nil, is called with a record before and after each change. It must not
	// use the server.
	Changed func(id driver.KeyID, before, after driver.Record)

	// Late, if not nil, is called if a combined call begins an attempt so long after its caller has gone.
	Late func(id driver.KeyID, by time.Duration)

	mu      sync.Mutex
	offset  time.Duration // of the server's clock
	state   *state
	log     []entry
	down    bool
	lost    bool                    // and not accepted
	full    func(driver.KeyID) bool // the keys that the server writes nothing of; nil for none
	stalled time.Time               // it answers nothing until then
}

// state is what the server keeps.
type state struct {
	*memorystore.Store           // the records
	now                time.Time // of the call that is served, by the server's clock
	locks              map[driver.KeyID]lock
	last               uint64 // fence
}

func newState() *state {
	st := &state{locks: make(map[driver.KeyID]lock)}
	st.Store = memorystore.New(memorystore.WithClock(func() time.Time { return st.now }))
	return st
}

// entry is one change.
type entry struct {
	at    time.Time // by the true time
	clock time.Time // by the server's clock
	id    driver.KeyID
	locks bool // it changes the lock
	apply func(*state) error
}

// New returns an empty server.
func New() *Server {
	return &Server{state: newState()}
}

var (
	errDown = errors.New("simstore: server is down")
	errLost = fmt.Errorf("simstore: %w", driver.ErrStoreLost)
	errFull = fmt.Errorf("simstore: server is full: %w: %w", driver.ErrUnavailable, driver.ErrNoWrites)
)

// change applies and logs a change.
func (s *Server) change(id driver.KeyID, begins bool, apply func(*state) error) error {
	s.enter()
	defer s.mu.Unlock()
	switch {
	case s.down:
		return errDown
	case s.full != nil && s.full(id):
		return errFull
	}
	before, _ := s.state.Get(context.Background(), id)
	if s.lost && (begins || before.State == driver.StateNone) {
		return errLost
	}
	s.note(id, false, apply)
	err := apply(s.state)
	s.report(id, before)
	return err
}

// note logs a change. Needs mu.
func (s *Server) note(id driver.KeyID, locks bool, apply func(*state) error) {
	s.log = append(s.log, entry{time.Now(), s.state.now, id, locks, apply})
}

// report tells of a change. Needs mu.
func (s *Server) report(id driver.KeyID, before driver.Record) {
	after, _ := s.state.Get(context.Background(), id)
	if s.Changed != nil {
		s.Changed(id, before, after)
	}
}

// read looks at the records.
func (s *Server) read(look func(*state) error) error {
	s.enter()
	defer s.mu.Unlock()
	if s.down {
		return errDown
	}
	return look(s.state)
}

// enter locks the server for a call, and looks at its clock. A call waits while the server is stalled.
func (s *Server) enter() {
	s.mu.Lock()
	for time.Now().Before(s.stalled) {
		left := time.Until(s.stalled)
		s.mu.Unlock()
		time.Sleep(left)
		s.mu.Lock()
	}
	s.state.now = time.Now().Add(s.offset)
}

// Full makes the server refuse writes about some keys, as one does that has no memory or no replica left
// for them. It goes on to answer reads. Nil ends that.
func (s *Server) Full(full func(driver.KeyID) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
}

// Stall makes the server do nothing for d. Then it serves the calls that have arrived meanwhile,
// although their callers may have gone.
func (s *Server) Stall(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := time.Now().Add(d); until.After(s.stalled) {
		s.stalled = until
	}
}

// StepClock makes the server's clock wrong by offset. A step ahead counts as a loss, which the server
// refuses until Accept, unless it accepts at once. A step ahead ends locks early, and StepClock reports that.
func (s *Server) StepClock(offset time.Duration, accept bool) (ahead bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ahead = offset > s.offset
	s.lost = s.lost || ahead && offset > 0 && !accept
	s.offset = offset
	return ahead
}

// Down makes the server refuse every call, or serve again.
func (s *Server) Down(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// FallBack drops the changes of the last time d, although their callers were told that
// they had taken effect. It returns the keys whose records are others now, or whose locks may be.
func (s *Server) FallBack(d time.Duration) []driver.KeyID {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := len(s.log)
	for kept > 0 && time.Since(s.log[kept-1].at) < d {
		kept--
	}
	return s.rebuild(kept)
}

// LoseAll drops all records. The server refuses until Accept, unless it accepts at once.
func (s *Server) LoseAll(accept bool) []driver.KeyID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = s.lost || !accept
	return s.rebuild(0)
}

// Accept accepts a loss, as an operator does.
func (s *Server) Accept() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = false
}

// rebuild applies the first n changes to an empty store.
func (s *Server) rebuild(n int) (changed []driver.KeyID) {
	before := s.state
	dropped := s.log[n:]
	s.log = s.log[:n:n]
	s.state = newState()
	for _, e := range s.log {
		s.state.now = e.clock
		_ = e.apply(s.state)
	}
	s.state.now = time.Now().Add(s.offset)
	seen := make(map[driver.KeyID]bool)
	for _, e := range dropped {
		was, _ := before.Get(context.Background(), e.id)
		is, _ := s.state.Get(context.Background(), e.id)
		if same := !e.locks && was.State == is.State && was.Attempt == is.Attempt; !seen[e.id] && !same {
			changed = append(changed, e.id)
			seen[e.id] = true
		}
	}
	return changed
}

// Record returns the record of a key, without the network.
func (s *Server) Record(id driver.KeyID) driver.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.now = time.Now().Add(s.offset)
	rec, _ := s.state.Get(context.Background(), id)
	return rec
}
