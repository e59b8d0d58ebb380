package session

import (
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// requests sends requests over the present connection.
type requests struct {
	*trust

	conn    *zk.Conn
	slots   chan struct{} // semaphore of the reads, so that writes need not wait for many
	member  *zk.SetDataRequest
	renewed func() // called when a write has confirmed a connection
	applied atomic.Int64
	version atomic.Int32 // of the member znode, after the acknowledged writes
}

// Applied is the highest zxid of the session's acknowledged writes.
func (r *requests) Applied() int64 { return r.applied.Load() }

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
	before, sent := r.version.Load(), r.now()
	answer, err := r.conn.Multi(append([]any{r.member}, ops...)...)
	acked := r.now()
	answered()

	got := interpret(len(ops), answer, err)
	switch {
	case got.Outcome == Ended:
		r.die(got.Err)
	case got.Outcome == Applied && !later(got.version, before):
		r.die(ErrRewound)
		return Result{Outcome: Ended, Err: ErrRewound}
	case got.Outcome == Refused && got.Op < 0: // no write of this session can ever succeed
		r.die(notPermittedAt(r.member.Path, got.Err))
	case got.Outcome == Applied || got.Outcome == Refused:
		if r.acknowledge(gen, sent, acked) {
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
				r.tr.Drop()
				r.log.Warn("zookeeper: a request was not answered, trying another server", "after", patience)
				left = patience
			}
			select {
			case <-time.After(left):
			case <-done:
				return
			case <-r.over:
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
	r.mu.Lock()
	defer r.mu.Unlock()
	whole = r.clock.patience()
	switch {
	case !r.connected:
		return whole, whole
	case r.since.After(began):
		began = r.since
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
		r.die(ErrExpired)
	case zk.StateDisconnected, zk.StateConnecting:
		r.mu.Lock()
		lost, id := r.connected, r.id
		if lost {
			r.connected, r.confirmed = false, false
			r.broadcast()
		}
		r.mu.Unlock()
		if lost {
			r.log.Warn("zookeeper: connection lost", "session", hexID(id), "error", r.tr.Failure())
		}
	}
}

func (r *requests) onConnected() {
	id, timeout, sent := r.tr.Accepted()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why == nil {
		r.id = id // always the same, as the transport makes sure
		r.gen++
		r.since = time.Now()
		r.connected, r.confirmed = true, false
		r.clock.handshake(sent, timeout)
		r.broadcast()
	}
}
