package zookeeper

import (
	"sync"

	"github.com/go-zookeeper/zk"
)

// How many Multis of a session are on their way at once. One that finds several
// writes waiting takes them along (batch.go), and what a Multi costs the servers
// depends little on what is in it, so that fewer and larger ones carry more: one is
// prepared while the servers write the other to their disks. Only full ones, and
// writes that must not share one, are sent while as many are under way.
//
// The library blocks its 17th *queued* request, but requests queue only while
// there is no connection, and then it is these goroutines that are blocked, which
// nobody else depends on: callers wait on channels of their own.
const (
	flights    = 2
	maxFlights = 4
)

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

	mu        sync.Mutex
	waiting   []*write
	gathering bool                // a worker is about to take what waits
	split     bool                // some wait because they may not share a Multi
	flying    int                 // Multis under way
	last      int                 // writes in the last one that was sent
	asked     map[*write]struct{} // those of ask that were not told yet
	wake      chan struct{}       // has room for one: somebody is waiting
}

// write is operations that are applied together or not at all, and where their
// result goes.
type write struct {
	ops    []any
	line   string // below which it takes a place; "" if it does not
	bold   bool   // nobody has looked whether the parent of what it creates is there
	size   int    // bytes of data, roughly
	answer chan result
	told   func(result) // instead of answer; see ask
}

func newWriter(s *session, member string, data []byte) *writer {
	return &writer{
		s:     s,
		pin:   &zk.SetDataRequest{Path: member, Data: data, Version: -1},
		asked: make(map[*write]struct{}),
		wake:  make(chan struct{}, 1),
	}
}

func (w *writer) start() {
	w.wg.Go(w.end)
	for range maxFlights {
		w.wg.Go(w.work)
	}
}

// do sends a pinned write and waits until its outcome is known, or known to be
// unknown. That takes no longer than the session's patience plus a reconnect.
// To be called from goroutines that can wait, never from a caller's.
func (w *writer) do(ops ...any) result {
	wr := newWrite(ops)
	w.mu.Lock()
	w.queue(wr)
	w.mu.Unlock()
	select {
	case r := <-wr.answer:
		return r
	case <-w.s.over:
		return result{outcome: ended, err: w.s.reason()}
	}
}

// ask is do for those that cannot wait: told is called with the outcome, once, on
// a goroutine that serves all writes and must not be held up. Needs session.mu,
// and a session that is not over.
func (w *writer) ask(told func(result), ops ...any) { w.submit(told, measured(ops)) }

// submit is ask for a write that was made before.
func (w *writer) submit(told func(result), wr *write) {
	wr.told = told
	w.mu.Lock()
	w.asked[wr] = struct{}{}
	w.queue(wr)
	w.mu.Unlock()
}

// reply tells a write its outcome.
func (w *writer) reply(wr *write, r result) {
	if wr.told == nil {
		wr.answer <- r
		return
	}
	w.mu.Lock()
	_, open := w.asked[wr]
	delete(w.asked, wr)
	w.mu.Unlock()
	if open {
		wr.told(r)
	}
}

// end tells those who have asked that the session is over, as do does by itself:
// a request that is under way may stay unanswered for long.
func (w *writer) end() {
	<-w.s.over
	w.mu.Lock()
	asked := w.asked
	w.asked = nil
	w.mu.Unlock()
	for wr := range asked {
		wr.told(result{outcome: ended, err: w.s.reason()})
	}
}

// queue adds a write to those that wait. Needs mu.
func (w *writer) queue(wr *write) {
	w.waiting = append(w.waiting, wr)
	w.rouse()
}

// rouse wakes a worker if there is something that may be sent now, unless one is
// about to look anyway. Needs mu.
func (w *writer) rouse() {
	if len(w.waiting) == 0 || w.gathering || !w.cleared() {
		return // who is gathering, or lands, looks again
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// cleared says whether another Multi may be sent now. Needs mu.
func (w *writer) cleared() bool {
	return w.flying < flights || w.flying < maxFlights && (w.split || len(w.waiting) >= maxBatch)
}

// work sends what is waiting.
func (w *writer) work() {
	for {
		select {
		case <-w.wake:
		case <-w.s.over:
			return
		}
		w.gather()
		if batch := w.takeOff(); len(batch) > 0 {
			w.sendAll(batch)
			w.land()
		}
	}
}

func (w *writer) land() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flying--
	w.rouse()
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
	sent := w.s.cfg.now()
	answer, err := w.s.conn.Multi(multi...)
	acked := w.s.cfg.now()
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
		r.err = refusalOf(ops[r.op], r.err)
	case ended:
		w.s.die(r.err)
	}
	return r
}
