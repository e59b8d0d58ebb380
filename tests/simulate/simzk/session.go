package simzk

import "time"

// session is a session as the leader knows it.
type session struct {
	id      int64
	timeout time.Duration
	owner   *server   // the server of its latest connection
	heard   time.Time // when the leader last knew of it
	closing bool
}

// Sessions are granted between these numbers of ticks.
const leastTicks, mostTicks = 2, 20

// open makes a session for a client of a server.
func (e *Ensemble) open(s *server, c *conn, asked time.Duration) {
	granted := min(max(asked, leastTicks*e.cfg.Tick), mostTicks*e.cfg.Tick)
	e.lastID++
	id := e.lastID
	e.toLeader(s, func() {
		e.sessions[id] = &session{id: id, timeout: granted, owner: s, heard: time.Now()}
		tx := e.prepare(id, s, opCreateSession, nil)
		tx.origin = &entry{c: c, greeting: true, timeout: granted}
		e.propose(tx)
	})
}

// reopen moves a session to a connection, if the leader still has it.
func (e *Ensemble) reopen(s *server, c *conn, id int64) {
	e.toLeader(s, func() {
		found := e.sessions[id]
		if found != nil && found.closing {
			found = nil
		}
		if found != nil {
			found.owner, found.heard = s, time.Now()
		}
		e.after(e.hop(s.rnd), func() {
			if found != nil {
				c.welcome(id, found.timeout)
			} else {
				c.welcome(0, 0)
			}
		})
	})
}

// pulse is the leader's ping of its followers, every half tick. The answers tell which
// sessions a follower has heard of. Then the leader looks for sessions to expire.
func (e *Ensemble) pulse() {
	defer e.after(e.cfg.Tick/2, e.pulse)
	if e.leader == nil {
		return
	}
	for _, s := range e.servers {
		if s == e.leader || s.down || !s.linked() || len(s.touched) == 0 {
			continue
		}
		heard := s.touched
		s.touched = make(map[int64]bool)
		e.toLeader(s, func() {
			for id := range heard {
				e.touch(id)
			}
		})
	}
	if !e.quorum() {
		return
	}
	for id, s := range e.sessions {
		if !s.closing && time.Since(s.heard) > time.Duration(float64(s.timeout)/e.cfg.Speed) {
			e.propose(e.prepare(id, nil, opCloseSession, nil))
		}
	}
}

// touch is news of a session.
func (e *Ensemble) touch(id int64) {
	if s := e.sessions[id]; s != nil {
		s.heard = time.Now()
	}
}

// ExpireSessionOf ends the sessions that a host is connected with, as an operator may do.
func (e *Ensemble) ExpireSessionOf(host string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.leader == nil {
		return
	}
	for _, server := range e.servers {
		for c := range server.conns {
			s := e.sessions[c.session]
			if c.nc.RemoteAddr().String() == host && s != nil && !s.closing {
				e.propose(e.prepare(s.id, nil, opCloseSession, nil))
			}
		}
	}
}
