package session

import (
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// requests sends requests over the present connection.
type requests struct {
	*trust

	conn  *zk.Conn
	slots chan struct{} // semaphore of call
}

// connection returns the number of the present connection. It fails when there is no
// connection. A request would wait in the library's queue then, for no known time.
func (r *requests) connection() (gen uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.connected {
		return 0, errNotConnected
	}
	return r.gen, nil
}

// confirmation is connection for deciding reads. A pinned write was acknowledged over
// the present connection.
func (r *requests) confirmation() (gen uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.connected:
		return 0, errNotConnected
	case !r.confirmed:
		return 0, errNotConfirmed
	}
	return r.gen, nil
}

// call makes a request that is not pinned: only a few at a time, and under a guard.
func call[T any](r *requests, f func(*zk.Conn) (T, error)) (T, error) {
	select {
	case r.slots <- struct{}{}:
	case <-r.over:
		var zero T
		return zero, r.Err()
	}
	defer func() { <-r.slots }()
	guard := r.guard()
	defer guard.stop()
	return f(r.conn)
}

// guard limits how long one request may stay unanswered. Then it drops the connection,
// and the session moves to another server while its leases are still trusted. The
// library would notice after two thirds of the session, which may be too late. A
// follower that is cut off from its leader even goes on answering pings while no write
// of the session waits. (A pending write holds up everything that the session sent
// after it.) The guard also ends requests that would never be answered.
type guard struct {
	r *requests

	mu      sync.Mutex
	gen     uint64
	timer   *time.Timer
	stopped bool
}

func (r *requests) guard() *guard {
	r.mu.Lock()
	gen, patience := r.gen, r.clock.patience()
	r.mu.Unlock()
	g := &guard{r: r, gen: gen}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = time.AfterFunc(patience, g.fire)
	return g
}

func (g *guard) fire() {
	r := g.r
	r.mu.Lock()
	gen, connected, over, patience := r.gen, r.connected, r.why != nil, r.clock.patience()
	r.mu.Unlock()

	if g.expired(gen, connected, over, patience) {
		r.tr.Drop()
		r.log.Warn("zookeeper: a request was not answered, trying another server", "after", patience)
	}
}

func (g *guard) expired(gen uint64, connected, over bool, patience time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped || over {
		return false
	}
	if connected && gen == g.gen {
		return true
	}
	// The request waited for a connection, so its time starts with that.
	g.gen = gen
	g.timer.Reset(patience)
	return false
}

func (g *guard) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	g.timer.Stop()
}
