package session

import (
	"sync"
	"time"
)

// Waiting writes share a Multi (group commit): one transaction, one write to the servers'
// disks, one answer. The knowledge about each write stays exact. A Multi is applied as a
// whole or not at all, and a refused one names its culprit. batch.go chooses the writes of
// the next Multi, and refused.go what is sent again after a refusal.

// Request is operations that are applied together or not at all.
type Request struct {
	Ops []any

	// Lazy says that the request may wait up to lazyWait for a request that is not lazy, to share
	// its Multi. It also leaves when MaxBatch requests wait.
	Lazy bool

	// Group, if not empty, is the name of a group of requests whose znodes have to be told
	// apart. Those that share a transaction have the same czxid. So before it is sent,
	// Number is called with the number of the request among those of its group, which is
	// less than MaxBatch and grows in the order of the operations.
	Group  string
	Number func(n int)
}

// Writes makes the pinned writes of a session.
type Writes struct {
	status *Status
	send   func(ops ...any) Result // one Multi

	mu        sync.Mutex
	waiting   []*write
	lazy      int         // how many of the waiting writes may wait
	lazyTimer *time.Timer // ends the wait of lazy writes; nil before the first one
	underWay  int         // Multis
}

// Do makes a pinned write of operations that are applied together or not at all. It waits for the
// outcome, which may be Unknown. It takes no longer than the session's patience plus a reconnect. It
// is for goroutines that can wait.
func (b *Writes) Do(ops ...any) Result { return b.DoRequest(Request{Ops: ops}) }

// DoRequest is Do with the choices of a [Request].
func (b *Writes) DoRequest(req Request) Result {
	wr := newWrite(req)
	b.mu.Lock()
	b.waiting = append(b.waiting, wr)
	if req.Lazy {
		b.noteLazy()
	}
	b.sendMore()
	b.mu.Unlock()
	return b.outcome(wr)
}

// outcome waits for the answer to a write, or for the end of the session. A request under
// way may stay unanswered for long then.
func (b *Writes) outcome(wr *write) Result {
	select {
	case r := <-wr.answer:
		return r
	case <-b.status.over:
	}
	select {
	case r := <-wr.answer: // it came before the end
		return r
	default:
		return Result{Outcome: Ended, Err: b.status.Err()}
	}
}

// sendAll sends a batch and answers each of its writes. Of a refused batch nothing has
// been applied, and all writes but the culprit are sent again. See sortOut.
func (b *Writes) sendAll(batch []*write) {
	ops := make([]any, 0, 2*len(batch))
	for _, wr := range batch {
		ops = append(ops, wr.Ops...)
	}
	r := b.send(ops...)
	if r.Outcome != Refused || r.Op < 0 {
		at := 0
		for _, wr := range batch {
			wr.answer <- r.slice(at, len(wr.Ops))
			at += len(wr.Ops)
		}
		return
	}
	culprit := 0
	for r.Op >= len(batch[culprit].Ops) {
		r.Op -= len(batch[culprit].Ops)
		culprit++
	}
	so := sortOut(batch, culprit, r)
	for _, wr := range so.told {
		wr.answer <- r
	}
	var wg sync.WaitGroup
	for _, piece := range so.pieces {
		wg.Go(func() { b.sendAll(piece) })
	}
	wg.Wait()
	if so.last != nil {
		b.sendAll([]*write{so.last})
	}
}
