package simzk

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/tests/simulate/simnet"
)

// Config describes an ensemble.
type Config struct {
	Servers []string      // names of the hosts
	Tick    time.Duration // tickTime
	// Speed is how fast the clock that expires sessions runs, 1 for the right speed.
	Speed float64
	// Lag bounds how much later than the leader a follower usually applies a write.
	Lag time.Duration
	// SyncLimit is how long a server serves clients without the others.
	SyncLimit time.Duration
	// Election is how long the others take to elect another leader.
	Election time.Duration
	// Containers is how often the leader removes empty containers.
	Containers time.Duration
}

// Ensemble is an ensemble. It is safe for concurrent use.
type Ensemble struct {
	cfg Config
	net *simnet.Net

	mu       sync.Mutex // guards everything below, of the servers and connections too
	rnd      *rand.Rand // for what the leader draws
	servers  []*server
	leader   *server // nil during an election
	epoch    int64   // counts the elections
	rewound  int64   // how many of them the servers do not know of, because they came back with older data
	counter  int64
	log      []*txn
	commits  int  // entries of the log that are committed
	latest   tree // with all entries of the log
	sessions map[int64]*session
	lastID   int64
	busy     time.Time // when the latest commit is due
	stopped  bool
}

// New starts an ensemble. Its servers accept connections at their names. Stop ends it.
func New(seed uint64, nw *simnet.Net, cfg Config) *Ensemble {
	e := &Ensemble{
		cfg: cfg, net: nw, rnd: simnet.Random(seed, "ensemble"), epoch: 1, latest: newTree(),
		sessions: make(map[int64]*session), lastID: 0x1000000000000,
	}
	for _, name := range cfg.Servers {
		s := &server{e: e, name: name, tree: newTree(), rnd: simnet.Random(seed, name)}
		e.servers = append(e.servers, s)
		s.boot()
		nw.Listen(name, s.accept)
	}
	e.leader = e.servers[e.rnd.IntN(len(e.servers))]
	e.after(cfg.Tick/2, e.pulse)
	e.after(cfg.Containers, e.removeContainers)
	return e
}

// Stop stops all servers.
func (e *Ensemble) Stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = true
	for _, s := range e.servers {
		s.drop()
		e.net.Listen(s.name, nil)
	}
}

// after runs f later, with the lock held, unless the ensemble has stopped.
func (e *Ensemble) after(d time.Duration, f func()) {
	time.AfterFunc(max(d, 0), func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if !e.stopped {
			f()
		}
	})
}

// hop is the time of a message between two servers.
func (e *Ensemble) hop(rnd *rand.Rand) time.Duration {
	return 100*time.Microsecond + time.Duration(rnd.Int64N(int64(400*time.Microsecond)))
}

// message is one of a server for its leader.
type message struct {
	at    time.Time // when it arrives, unless the two are cut off
	epoch int64
	do    func()
}

// toLeader runs f at the leader, after a message of a server. Messages of a server come in
// their order. They are lost with an election and with a crash of the server.
func (e *Ensemble) toLeader(s *server, f func()) {
	at := time.Now()
	if s != e.leader {
		at = at.Add(e.hop(s.rnd))
	}
	if n := len(s.outbox); n > 0 {
		at = later(at, s.outbox[n-1].at)
	}
	s.outbox = append(s.outbox, message{at, e.epoch, f})
	e.after(time.Until(at), func() { e.deliver(s) })
}

// deliver hands the messages of a server that are due to the leader.
func (e *Ensemble) deliver(s *server) {
	for len(s.outbox) > 0 {
		m := s.outbox[0]
		switch {
		case m.epoch != e.epoch || e.leader == nil: // lost
		case m.at.After(time.Now()):
			return
		case s != e.leader && (!s.linked() || !e.leader.linked()): // TCP sends it again
			e.after(max(time.Until(s.cutUntil), time.Until(e.leader.cutUntil)), func() { e.deliver(s) })
			return
		default:
			s.outbox = s.outbox[1:]
			m.do()
			continue
		}
		s.outbox = s.outbox[1:]
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// nextZxid numbers an entry.
func (e *Ensemble) nextZxid() int64 {
	e.counter++
	return (e.epoch-e.rewound)<<32 | e.counter
}

// propose appends an entry to the log, and commits it when most servers have it.
func (e *Ensemble) propose(tx *txn) {
	e.log = append(e.log, tx)
	n, epoch := len(e.log), e.epoch
	at := later(time.Now().Add(2*e.hop(e.rnd)), e.busy)
	e.busy = at
	var commit func()
	commit = func() {
		switch {
		case epoch != e.epoch || e.leader == nil || e.commits >= n:
			return
		case !e.quorum():
			e.after(e.cfg.Tick/8, commit)
			return
		}
		e.commits = n
		e.leader.apply(n)
		for _, s := range e.servers {
			if s != e.leader {
				e.follow(s, n)
			}
		}
	}
	e.after(time.Until(at), commit)
}

// follow has a follower apply the log up to n.
func (e *Ensemble) follow(s *server, n int) {
	epoch := e.epoch
	at := time.Now().Add(e.hop(s.rnd) + time.Duration(s.rnd.Int64N(int64(e.cfg.Lag)+1)))
	at = later(at, s.heardUntil)
	s.heardUntil = at
	var arrive func()
	arrive = func() {
		switch {
		case epoch != e.epoch || s.down || s.applied >= n:
			return
		case !s.linked():
			e.after(time.Until(s.cutUntil), arrive)
			return
		}
		s.apply(n)
	}
	e.after(time.Until(at), arrive)
}

// quorum reports whether the leader reaches most of the servers.
func (e *Ensemble) quorum() bool {
	if e.leader == nil || e.leader.down || !e.leader.linked() {
		return false
	}
	reached := 0
	for _, s := range e.servers {
		if !s.down && s.linked() {
			reached++
		}
	}
	return reached > len(e.servers)/2
}

// removeContainers removes the containers that had children and have none.
func (e *Ensemble) removeContainers() {
	defer e.after(e.cfg.Containers, e.removeContainers)
	if !e.quorum() {
		return
	}
	for path, z := range e.latest {
		if z.container && z.creates > 0 && len(z.children) == 0 {
			tx := &txn{zxid: e.nextZxid(), time: time.Now().UnixMilli(), code: opDelete, ops: []op{{code: opDelete, path: path}}}
			e.latest.apply(tx, &tx.ops[0])
			e.propose(tx)
		}
	}
}

// Znodes lists the paths of all znodes but the root. An ephemeral one is followed by " of"
// and its session. A container that never had a child is left out, because the servers
// keep it for ever.
func (e *Ensemble) Znodes() (paths []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for path, z := range e.latest {
		if path == "/" || z.container && z.creates == 0 {
			continue
		}
		if z.owner != 0 {
			path += fmt.Sprintf(" of 0x%x", z.owner)
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// Sessions is the number of open sessions.
func (e *Ensemble) Sessions() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.sessions)
}

// Watches is the number of watches that clients have left.
func (e *Ensemble) Watches() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.servers {
		n += len(s.watches)
	}
	return n
}

// accept serves a connection.
func (s *server) accept(nc net.Conn) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	c := &conn{s: s, nc: nc}
	if s.e.stopped || s.down || s.looking {
		_ = nc.Close()
		return
	}
	s.conns[c] = true
	go c.read()
}
