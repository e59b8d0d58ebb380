package session

import (
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// requests sends writes over the present connection, and follows the connections.
type requests struct {
	status *Status
	trust  *Trust

	conn    *zk.Conn
	member  *zk.SetDataRequest
	renewed func()       // called when a write has confirmed a connection
	applied atomic.Int64 // highest zxid of an acknowledged write
	version atomic.Int32 // of the member znode, after the acknowledged writes
}

// connection returns the number of the present connection. It fails when there is no
// connection. A request would wait in the library's queue then, for no known time.
func (r *requests) connection() (gen uint64, err error) {
	r.status.mu.Lock()
	defer r.status.mu.Unlock()
	if !r.status.connected {
		return 0, errNotConnected
	}
	return r.status.gen, nil
}

// confirmation is connection for deciding reads. A pinned write was acknowledged over
// the present connection.
func (r *requests) confirmation() (gen uint64, err error) {
	r.status.mu.Lock()
	defer r.status.mu.Unlock()
	switch {
	case !r.status.connected:
		return 0, errNotConnected
	case !r.status.confirmed:
		return 0, errNotConfirmed
	}
	return r.status.gen, nil
}

// send makes one pinned write. It is a Multi that begins by setting the data of the
// session's own ephemeral member znode. If the session is gone, the member is gone as
// well, and the whole Multi fails in any session. The new mzxid of the member is also the
// czxid of all znodes created by the Multi.
//
// An answer renews the trust in the session's leases, counted from before the write was
// sent. A refusal counts as well, since it takes the same way through the quorum.
//
// Each write raises the version of the member. If the version is not above one that was acknowledged
// before the write was sent, the servers came back with older data, and with this session in it. They
// have forgotten locks of the session, and others that it had released are there again. So the
// session ends, and all of its znodes go.
func (r *requests) send(ops ...any) Result {
	gen, err := r.connection()
	if err != nil {
		return Result{Outcome: Unsent, Err: err}
	}
	answered := r.guard()
	before, sent := r.version.Load(), r.status.now()
	answer, err := r.conn.Multi(append([]any{r.member}, ops...)...)
	acked := r.status.now()
	answered()

	got := interpret(len(ops), answer, err)
	switch {
	case got.Outcome == Ended:
		r.trust.die(got.Err)
	case got.Outcome == Applied && !later(got.version, before):
		r.trust.die(ErrRewound)
		return Result{Outcome: Ended, Err: ErrRewound}
	case got.Outcome == Refused && got.Op < 0: // no write of this session can ever succeed
		r.trust.die(notPermittedAt(r.member.Path, got.Err))
	case got.Outcome == Applied || got.Outcome == Refused:
		if r.trust.acknowledge(gen, sent, acked) {
			r.renewed() // the watches missed the changes in between
		}
		if got.Outcome == Refused {
			got.Err = refusalOf(ops[got.Op], got.Err)
		}
		for known := r.applied.Load(); known < got.Zxid && !r.applied.CompareAndSwap(known, got.Zxid); {
			known = r.applied.Load()
		}
		for known := r.version.Load(); got.Outcome == Applied && later(got.version, known) && !r.version.CompareAndSwap(known, got.version); {
			known = r.version.Load()
		}
	}
	return got
}

// later reports whether a version of a znode follows another one. Versions of 32 bits wrap around.
func later(version, than int32) bool { return version-than > 0 }

// guard limits how long a write may stay unanswered over one connection. Then it drops the
// connection, and the session moves to another server while its leases are still trusted.
// The library would notice after two thirds of the session, which may be too late. A
// follower that is cut off from its leader even goes on answering pings while no write of
// the session waits. The caller calls answered when the write has its answer.
//
// A write may still be in the library's queue when its connection breaks. The library then
// sends it over the next one. So its time begins again with each connection. A server does
// not answer at all, for example, if the session was closed over another connection.
//
// Reads have no guard of their own. A pending write holds up everything that the session
// sent after it, and a heartbeat soon follows a read.
func (r *requests) guard() (answered func()) {
	began, done := time.Now(), make(chan struct{})
	watch := func() {
		for {
			left, patience := r.patience(began)
			if left <= 0 {
				r.status.tr.Drop()
				r.status.log.Warn("zookeeper: a request was not answered, trying another server", "after", patience)
				left = patience
			}
			select {
			case <-time.After(left):
			case <-done:
				return
			case <-r.status.over:
				return
			}
		}
	}
	left, _ := r.patience(began)
	timer := time.AfterFunc(left, watch)
	return func() {
		timer.Stop()
		close(done)
	}
}

// patience is how long a write that began at that time may go on without an answer over the
// present connection, and how long that is from the start. Without a connection it is not
// impatient.
func (r *requests) patience(began time.Time) (left, whole time.Duration) {
	r.status.mu.Lock()
	defer r.status.mu.Unlock()
	whole = r.trust.clock.patience()
	switch {
	case !r.status.connected:
		return whole, whole
	case r.status.since.After(began):
		began = r.status.since
	}
	return whole - time.Since(began), whole
}

// onState follows the connections of the session by the library's events. It runs on the
// library's own goroutines, so it neither waits nor calls ZooKeeper.
func (r *requests) onState(state zk.State) {
	switch state {
	case zk.StateHasSession:
		r.onConnected()
	case zk.StateExpired:
		r.trust.die(ErrExpired)
	case zk.StateDisconnected, zk.StateConnecting:
		r.status.mu.Lock()
		lost, id := r.status.connected, r.status.id
		if lost {
			r.status.connected, r.status.confirmed = false, false
			r.status.broadcast()
		}
		r.status.mu.Unlock()
		if lost {
			r.status.log.Warn("zookeeper: connection lost", "session", hexID(id), "error", r.status.tr.Failure())
		}
	}
}

func (r *requests) onConnected() {
	id, timeout, sent := r.status.tr.Accepted()
	r.status.mu.Lock()
	defer r.status.mu.Unlock()
	if r.status.why == nil {
		r.status.id = id // always the same, as the transport makes sure
		r.status.gen++
		r.status.since = time.Now()
		r.status.connected, r.status.confirmed = true, false
		if r.trust.clock.contradicts(timeout) {
			r.status.log.Error("zookeeper: the servers grant different session time-outs, so the session cannot be trusted: give all of them the same maxSessionTimeout",
				"session", hexID(id), "timeout", timeout, "before", r.trust.clock.timeout)
		}
		r.trust.clock.handshake(sent, timeout)
		r.status.broadcast()
	}
}
