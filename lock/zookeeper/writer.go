package zookeeper

import (
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// writers is how many Multis of a session are on their way at once. One that
// finds several writes waiting takes them along (batch.go), so that few are
// enough for many callers, and a lonely write never waits for company. The
// library blocks its 17th *queued* request, but requests queue only while there
// is no connection, and then it is these goroutines that are blocked, which
// nobody else depends on: callers wait on channels of their own.
const writers = 4

// writer is the one place through which every write of a session goes. Each is
// part of a Multi that begins by setting the data of the session's own ephemeral
// member znode. That pins it: should the session be gone, the member is gone as
// well, and the whole Multi fails, in whatever session it may have ended up. And
// it tells the fence: the mzxid of the member is then the czxid of all that the
// Multi created.
type writer struct {
	s   *session
	pin *zk.SetDataRequest
	wg  sync.WaitGroup

	mu      sync.Mutex
	waiting []*write
	wake    chan struct{} // has room for one: somebody is waiting
}

// write is operations that are applied together or not at all, and where their
// result goes.
type write struct {
	ops    []any
	line   string // below which it takes a place; "" if it does not
	size   int    // bytes of data, roughly
	answer chan result
}

func newWriter(s *session, member string, data []byte) *writer {
	return &writer{
		s:    s,
		pin:  &zk.SetDataRequest{Path: member, Data: data, Version: -1},
		wake: make(chan struct{}, 1),
	}
}

func (w *writer) start() {
	for range writers {
		w.wg.Go(w.work)
	}
}

// do sends a pinned write and waits until its outcome is known, or known to be
// unknown. That takes no longer than the session's patience plus a reconnect.
// To be called from goroutines that can wait, never from a caller's.
func (w *writer) do(ops ...any) result {
	wr := newWrite(ops)
	w.mu.Lock()
	w.waiting = append(w.waiting, wr)
	w.mu.Unlock()
	w.rouse()
	select {
	case r := <-wr.answer:
		return r
	case <-w.s.over:
		return result{outcome: ended, err: w.s.reason()}
	}
}

// rouse wakes a worker, unless one is about to look anyway.
func (w *writer) rouse() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// work sends what is waiting.
func (w *writer) work() {
	for {
		select {
		case <-w.wake:
		case <-w.s.over:
			return
		}
		batch, more := w.next()
		if more {
			w.rouse()
		}
		w.sendAll(batch)
	}
}

// send makes one pinned write. Its answer, if it is one, renews the trust in
// the session's leases, counted from before it was sent: also when it is a
// refusal, which takes the same way through the quorum.
func (w *writer) send(ops ...any) result {
	multi := make([]any, 0, 1+len(ops))
	multi = append(append(multi, w.pin), ops...)

	gen, err := w.s.connection()
	if err != nil {
		return result{outcome: unsent, err: err}
	}
	guard := w.s.guard()
	sent := time.Now()
	answer, err := w.s.conn.Multi(multi...)
	acked := time.Now()
	guard.stop()

	r := interpret(len(ops), answer, err)
	switch r.outcome {
	case applied:
		w.s.acknowledge(gen, sent, acked)
	case refused:
		if r.op < 0 { // no write of this session can ever succeed
			w.s.die(notPermittedAt(w.pin.Path, r.err))
			break
		}
		w.s.acknowledge(gen, sent, acked)
		r.err = notPermitted(ops[r.op], r.err)
	case ended:
		w.s.die(r.err)
	}
	return r
}
