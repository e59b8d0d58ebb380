package session

import (
	"runtime"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"
)

// Writes that wait at the same moment share a Multi (group commit): one transaction, one
// write to the servers' disks, one answer. The knowledge about each write stays exact. A
// Multi is applied as a whole or not at all, and a refused one names its culprit.
const (
	// maxBatch bounds the writes of a Multi. Larger batches gain little, and have more
	// to send again when one write is refused.
	maxBatch = 128
	// maxBatchBytes keeps a Multi well below the servers' jute.maxbuffer (1 MiB). A
	// larger write goes alone.
	maxBatchBytes = 256 << 10
)

// How many Multis of a session are under way at once. The cost of a Multi depends little
// on its size, so fewer and larger ones carry more. The next one is prepared while the
// servers write the other to their disks. More are sent only when they are full, or when
// waiting writes must not share a Multi.
//
// The library blocks its 17th queued request. But requests queue only while there is no
// connection, and then only the goroutines of the batcher are blocked.
const (
	usualMultis = 2
	mostMultis  = 4
)

// Request is operations that are applied together or not at all.
type Request struct {
	Ops []any

	// Group, if not empty, is the name of a group of requests. No two requests of a
	// group share a transaction, so the znodes they create have different czxids.
	Group string

	// Hopeful marks a request whose parent znode may well be missing. When one hopeful
	// request is refused for that reason, all hopeful ones in its transaction are
	// refused with ErrMaybeNoParent, and are not sent again one by one.
	Hopeful bool
}

// write is a request on its way.
type write struct {
	Request
	size int // bytes of data, roughly
	told func(Result)
}

// batcher sends the writes of a session in batches.
type batcher struct {
	send func(ops ...any) Result // one Multi
	over <-chan struct{}         // closed when the session is over
	why  func() error            // why it is over
	wg   sync.WaitGroup

	mu      sync.Mutex
	waiting []*write
	split   bool                // some writes wait because they may not share a Multi
	flying  int                 // Multis under way
	open    map[*write]struct{} // without an answer yet; nil after end
}

func newBatcher(send func(ops ...any) Result, over <-chan struct{}, why func() error) *batcher {
	return &batcher{send: send, over: over, why: why, open: make(map[*write]struct{})}
}

// Write is Do for operations of no group.
func (b *batcher) Write(ops ...any) Result { return b.Do(Request{Ops: ops}) }

// Do makes a pinned write and waits for its outcome, which may be Unknown. It takes no
// longer than the session's patience plus a reconnect. It is for goroutines that can
// wait.
func (b *batcher) Do(req Request) Result {
	answer := make(chan Result, 1)
	if !b.Ask(req, func(r Result) { answer <- r }) {
		return Result{Outcome: Ended, Err: b.why()}
	}
	return <-answer
}

// Ask is Do for callers that cannot wait. It calls told with the outcome, once. The
// goroutine of that call serves all writes and must not be held up. Ask returns false,
// and does nothing, when the session is over.
func (b *batcher) Ask(req Request, told func(Result)) bool {
	wr := newWrite(req, told)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		return false
	}
	b.open[wr] = struct{}{}
	b.waiting = append(b.waiting, wr)
	b.rouse()
	return true
}

// Batch sends requests in one transaction, without any others. It does not wait in the
// queue. If one of them is refused, the others are sent again.
func (b *batcher) Batch(reqs ...Request) []Result {
	results, batch := make([]Result, len(reqs)), make([]*write, len(reqs))
	var answers sync.WaitGroup
	answers.Add(len(reqs))
	b.mu.Lock()
	over := b.open == nil
	for i, req := range reqs {
		batch[i] = newWrite(req, func(r Result) {
			results[i] = r
			answers.Done()
		})
		if !over {
			b.open[batch[i]] = struct{}{}
		}
	}
	b.mu.Unlock()
	if over {
		return slices.Repeat([]Result{{Outcome: Ended, Err: b.why()}}, len(reqs))
	}
	b.sendAll(batch)
	answers.Wait()
	return results
}

// newWrite measures a request.
func newWrite(req Request, told func(Result)) *write {
	wr := &write{Request: req, told: told}
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

// reply tells a write its outcome.
func (b *batcher) reply(wr *write, r Result) {
	b.mu.Lock()
	_, open := b.open[wr]
	delete(b.open, wr)
	b.mu.Unlock()
	if open {
		wr.told(r)
	}
}

// end tells all open writes about the end of the session. A request under way may stay
// unanswered for long.
func (b *batcher) end() {
	<-b.over
	b.mu.Lock()
	open := b.open
	b.open = nil
	b.mu.Unlock()
	for wr := range open {
		wr.told(Result{Outcome: Ended, Err: b.why()})
	}
}

// rouse has another Multi sent, if that may be now. Needs mu.
func (b *batcher) rouse() {
	urgent := b.split || len(b.waiting) >= maxBatch
	if len(b.waiting) > 0 && (b.flying < usualMultis || urgent && b.flying < mostMultis) {
		b.flying++
		b.wg.Go(b.fly)
	}
}

// fly sends one Multi. Callers with a common answer ask again together, and the first of
// them would leave without the others. So fly lets them run first.
func (b *batcher) fly() {
	runtime.Gosched()
	if batch := b.takeOff(); len(batch) > 0 {
		b.sendAll(batch)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flying--
	b.rouse()
}

// takeOff takes the writes for a Multi.
func (b *batcher) takeOff() []*write {
	b.mu.Lock()
	defer b.mu.Unlock()
	batch := b.next()
	b.rouse()
	return batch
}

// next takes the writes for one Multi off the queue, in their order. Needs mu.
func (b *batcher) next() (batch []*write) {
	size := 0
	var groups []string
	rest := b.waiting[:0]
	b.split = false
	for i, wr := range b.waiting {
		if len(batch) == maxBatch || len(batch) > 0 && size+wr.size > maxBatchBytes {
			rest = append(rest, b.waiting[i:]...)
			break
		}
		if wr.Group != "" {
			if slices.Contains(groups, wr.Group) {
				rest = append(rest, wr)
				b.split = true
				continue
			}
			groups = append(groups, wr.Group)
		}
		size += wr.size
		batch = append(batch, wr)
	}
	clear(b.waiting[len(rest):])
	b.waiting = rest
	return batch
}

// sendAll sends a batch and answers each of its writes. Of a refused batch nothing has
// been applied, and all writes but the culprit are sent again. See sortOut.
func (b *batcher) sendAll(batch []*write) {
	var ops []any
	for _, wr := range batch {
		ops = append(ops, wr.Ops...)
	}
	r := b.send(ops...)
	if r.Outcome != Refused || r.Op < 0 {
		at := 0
		for _, wr := range batch {
			b.reply(wr, r.slice(at, len(wr.Ops)))
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
		b.reply(wr, r)
	}
	for _, wr := range so.doubted {
		b.reply(wr, Result{Outcome: Refused, Err: ErrMaybeNoParent})
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
