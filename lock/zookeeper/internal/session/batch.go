package session

import (
	"runtime"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

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
// connection, and then only the goroutines of Writes are blocked.
const (
	usualMultis = 2
	mostMultis  = 4
)

// lazyWait is how long a lazy request waits for other requests. A caller that pays again at once
// asks for its next lock within that time. The release of its last lock then costs no write to
// the servers' disks.
const lazyWait = 5 * time.Millisecond

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

// noteLazy counts a lazy write. The first one sets the timer for all of them. Needs mu.
func (b *Writes) noteLazy() {
	b.lazy++
	switch {
	case b.lazyTimer == nil:
		b.lazyTimer = time.AfterFunc(lazyWait, b.endLazyWait)
	case b.lazy == 1:
		b.lazyTimer.Reset(lazyWait)
	}
}

// endLazyWait sends the lazy writes that wait.
func (b *Writes) endLazyWait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, wr := range b.waiting {
		wr.mayWait = false
	}
	b.lazy = 0
	b.sendMore()
}

// full reports whether the waiting writes fill a Multi. Needs mu.
func (b *Writes) full() bool { return len(b.waiting) >= MaxBatch }

// ready reports whether to send the waiting writes. They wait if all of them may, unless they
// fill a Multi. Needs mu.
func (b *Writes) ready() bool { return len(b.waiting) > b.lazy || b.full() }

// sendMore has another Multi sent if writes are ready and not too many Multis are under way.
// Needs mu.
func (b *Writes) sendMore() {
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
func (b *Writes) sendOne() {
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
func (b *Writes) next() (batch []*write) {
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
