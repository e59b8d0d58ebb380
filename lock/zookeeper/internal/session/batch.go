package session

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// Waiting writes share a Multi (group commit): one transaction, one write to the servers'
// disks, one answer. The knowledge about each write stays exact. A Multi is applied as a
// whole or not at all, and a refused one names its culprit.
const (
	// MaxBatch bounds the writes of a Multi. Larger batches gain little, and have more
	// to send again when one write is refused.
	MaxBatch = 128
	// maxBatchBytes keeps a Multi well below the servers' jute.maxbuffer (1 MiB). A
	// larger write goes alone.
	maxBatchBytes = 256 << 10
)

// How many Multis of a session are under way at once. The cost of a Multi depends little
// on its size, so fewer and larger ones carry more. The next one is prepared while the
// servers write the other to their disks. More are sent only when they are full.
//
// The library blocks its 17th queued request. But requests queue only while there is no
// connection, and then only the goroutines of the batcher are blocked.
const (
	usualMultis = 2
	mostMultis  = 4
)

// lazyWait is how long a lazy request waits for other requests. A caller that pays again at once
// asks for its next lock within that time. The release of its last lock then costs no write to
// the servers' disks.
const lazyWait = 5 * time.Millisecond

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

// write is a request on its way.
type write struct {
	Request
	size    int         // bytes of data, roughly
	mayWait bool        // it is lazy, and its wait is not over
	answer  chan Result // has room for one
}

// newWrite measures a request.
func newWrite(req Request) *write {
	wr := &write{Request: req, mayWait: req.Lazy, answer: make(chan Result, 1)}
	for _, op := range req.Ops {
		wr.size += 100 + len(pathOf(op))
		switch op := op.(type) {
		case *zk.CreateRequest:
			wr.size += len(op.Data)
		case *zk.SetDataRequest:
			wr.size += len(op.Data)
		}
	}
	return wr
}

// batcher sends the writes of a session in batches.
type batcher struct {
	status *status
	send   func(ops ...any) Result // one Multi

	mu        sync.Mutex
	waiting   []*write
	lazy      int         // how many of the waiting writes may wait
	lazyTimer *time.Timer // ends the wait of lazy writes; nil before the first one
	underWay  int         // Multis
}

// Write is Do for operations of no group.
func (b *batcher) Write(ops ...any) Result { return b.Do(Request{Ops: ops}) }

// Do makes a pinned write and waits for its outcome, which may be Unknown. It takes no
// longer than the session's patience plus a reconnect. It is for goroutines that can
// wait.
func (b *batcher) Do(req Request) Result {
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

// Batch sends requests in one transaction, without any others. It does not wait in the
// queue. If one of them is refused, the others are sent again.
func (b *batcher) Batch(reqs ...Request) (results []Result) {
	batch := make([]*write, len(reqs))
	for i, req := range reqs {
		batch[i] = newWrite(req)
	}
	b.status.Go(func() { b.sendAll(batch) })
	for _, wr := range batch {
		results = append(results, b.outcome(wr))
	}
	return results
}

// outcome waits for the answer to a write, or for the end of the session. A request under
// way may stay unanswered for long then.
func (b *batcher) outcome(wr *write) Result {
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

// noteLazy counts a lazy write. The first one sets the timer for all of them. Needs mu.
func (b *batcher) noteLazy() {
	b.lazy++
	switch {
	case b.lazyTimer == nil:
		b.lazyTimer = time.AfterFunc(lazyWait, b.endLazyWait)
	case b.lazy == 1:
		b.lazyTimer.Reset(lazyWait)
	}
}

// endLazyWait sends the lazy writes that wait.
func (b *batcher) endLazyWait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, wr := range b.waiting {
		wr.mayWait = false
	}
	b.lazy = 0
	b.sendMore()
}

// full reports whether the waiting writes fill a Multi. Needs mu.
func (b *batcher) full() bool { return len(b.waiting) >= MaxBatch }

// ready reports whether to send the waiting writes. They wait if all of them may, unless they
// fill a Multi. Needs mu.
func (b *batcher) ready() bool { return len(b.waiting) > b.lazy || b.full() }

// sendMore has another Multi sent if writes are ready and not too many Multis are under way.
// Needs mu.
func (b *batcher) sendMore() {
	most := usualMultis
	if b.full() {
		most = mostMultis
	}
	if b.ready() && b.underWay < most && b.status.Go(b.sendOne) {
		b.underWay++
	}
}

// sendOne sends one Multi and waits for its answer. Callers with a common answer ask again
// together, and the first of them would leave without the others. So sendOne lets them run
// first.
func (b *batcher) sendOne() {
	runtime.Gosched()
	b.mu.Lock()
	var batch []*write
	if b.ready() {
		batch = b.next()
	}
	b.sendMore()
	b.mu.Unlock()
	if len(batch) > 0 {
		b.sendAll(batch)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.underWay--
	b.sendMore()
}

// next takes the writes for one Multi off the queue, in their order. Needs mu.
func (b *batcher) next() (batch []*write) {
	size, numbers := 0, make(map[string]int)
	for _, wr := range b.waiting {
		if len(batch) == MaxBatch || len(batch) > 0 && size+wr.size > maxBatchBytes {
			break
		}
		if wr.Group != "" {
			wr.Number(numbers[wr.Group])
			numbers[wr.Group]++
		}
		if wr.mayWait {
			b.lazy--
		}
		size += wr.size
		batch = append(batch, wr)
	}
	b.waiting = slices.Delete(b.waiting, 0, len(batch))
	if b.lazy == 0 && b.lazyTimer != nil {
		b.lazyTimer.Stop()
	}
	return batch
}

// sendAll sends a batch and answers each of its writes. Of a refused batch nothing has
// been applied, and all writes but the culprit are sent again. See sortOut.
func (b *batcher) sendAll(batch []*write) {
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
	if len(so.last) > 0 {
		b.sendAll(so.last)
	}
}
