package simzk

import (
	"math/rand/v2"
	"time"
)

// server is one server.
type server struct {
	e    *Ensemble
	name string
	rnd  *rand.Rand
	tree tree

	applied    int   // entries of the log
	zxid       int64 // of the last one
	boots      int
	conns      map[*conn]bool
	watches    map[watch]bool
	touched    map[int64]bool // sessions heard of, and not told the leader yet
	down       bool
	looking    bool      // it has lost the others, and serves no clients
	cutUntil   time.Time // it does not reach the others
	outbox     []message // for the leader
	heardUntil time.Time // when the leader's latest message to it arrives
}

// watch is a watch that a client has left. Those left by exists count as data watches.
type watch struct {
	c        *conn
	path     string
	children bool
}

func (s *server) boot() {
	s.boots++
	s.outbox = nil
	s.conns, s.watches, s.touched = make(map[*conn]bool), make(map[watch]bool), make(map[int64]bool)
}

// linked reports whether the server reaches the others.
func (s *server) linked() bool { return !time.Now().Before(s.cutUntil) }

// drop closes all connections of clients.
func (s *server) drop() {
	for c := range s.conns {
		c.close()
	}
}

// apply applies the log up to n, tells watchers, and answers the clients of this server.
func (s *server) apply(n int) {
	for ; s.applied < n; s.applied++ {
		tx := s.e.log[s.applied]
		s.zxid = tx.zxid
		own := tx.origin != nil && tx.origin.c != nil && tx.origin.c.s == s && !tx.origin.c.closed
		var answer *entry
		if own {
			answer = tx.origin
		}
		for i := range tx.ops {
			o := &tx.ops[i]
			if !tx.refused {
				for _, ch := range s.tree.apply(tx, o) {
					s.fire(ch)
				}
			}
			if answer != nil {
				answer.result(s, tx, o)
			}
		}
		if tx.code == opCloseSession && s == s.e.leader {
			delete(s.e.sessions, tx.session)
		}
		switch {
		case answer == nil:
		case answer.greeting:
			answer.c.welcome(tx.session, answer.timeout)
		default:
			answer.finish(tx)
			answer.c.flush()
		}
		if tx.code == opCloseSession {
			for c := range s.conns {
				if c.session == tx.session {
					c.close()
				}
			}
		}
	}
}

// fire sends the events of a change.
func (s *server) fire(ch change) {
	told := make(map[*conn]bool)
	s.tell(watch{path: ch.path}, ch.kind, told)
	switch ch.kind {
	case eventDeleted:
		s.tell(watch{path: ch.path, children: true}, eventDeleted, told)
		s.tell(watch{path: parentOf(ch.path), children: true}, eventChildrenChanged, nil)
	case eventCreated:
		s.tell(watch{path: parentOf(ch.path), children: true}, eventChildrenChanged, nil)
	}
}

// tell sends an event to those who left a watch, except those told already.
func (s *server) tell(w watch, kind int32, told map[*conn]bool) {
	for c := range s.conns {
		w.c = c
		if !s.watches[w] {
			continue
		}
		delete(s.watches, w)
		if !told[c] {
			c.event(kind, w.path)
		}
		if told != nil {
			told[c] = true
		}
	}
}
