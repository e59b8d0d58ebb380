package zookeeper

import (
	"runtime"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"
)

// Writes that wait at the same moment share a Multi (group commit): one
// transaction, one write to the servers' disks, one answer. Whose outcome is
// known is not changed by that: a Multi is applied as a whole or not at all, and
// a refused one names its culprit.
const (
	// maxBatch bounds the writes of a Multi. Larger ones gain little, and have more
	// to send again when one is refused.
	maxBatch = 128
	// maxBatchBytes keeps a Multi well below the servers' jute.maxbuffer
	// (1 MiB). A write that is larger than this goes alone.
	maxBatchBytes = 256 << 10
)

func newWrite(ops []any) *write {
	wr := measured(ops)
	wr.answer = make(chan result, 1)
	return wr
}

// measured is a write without a place for its answer.
func measured(ops []any) *write {
	wr := &write{ops: ops}
	for _, op := range ops {
		wr.size += 100
		switch op := op.(type) {
		case *zk.CreateRequest:
			wr.size += len(op.Path) + len(op.Data)
			if op.Flags&zk.FlagSequence != 0 {
				wr.line = op.Path[:len(op.Path)-len(lastElement(op.Path))]
			}
		case *zk.SetDataRequest:
			wr.size += len(op.Path) + len(op.Data)
		case *zk.DeleteRequest:
			wr.size += len(op.Path)
		}
	}
	return wr
}

// gather lets those come that are about to: the callers who were answered together
// ask again together, and whoever is first would leave without the others. It
// yields the processor until that has brought nobody twice in a row. A write does
// not wait for company if the last one had none either.
func (w *writer) gather() {
	for before, still := 0, 0; ; runtime.Gosched() {
		w.mu.Lock()
		n := len(w.waiting)
		if still++; n > before {
			still = 0
		}
		w.gathering = still < 2 && n < maxBatch && (n > 1 || w.last > 1) && w.cleared()
		more := w.gathering
		w.mu.Unlock()
		if !more {
			return
		}
		before = n
	}
}

// takeOff takes the writes for a Multi that is to be sent now, if it may be.
func (w *writer) takeOff() []*write {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.cleared() {
		return nil
	}
	batch, _ := w.next()
	if len(batch) > 0 {
		w.flying++
		w.last = len(batch)
	}
	w.rouse()
	return batch
}

// next takes the writes for one Multi off the queue, in their order, and says
// whether there are more. Needs mu.
//
// What a Multi creates has one czxid in common, which is the fence: so two places in
// one line never share one. Locks of different keys always may.
func (w *writer) next() (batch []*write, more bool) {
	size := 0
	var lines []string // below which somebody takes a place
	rest := w.waiting[:0]
	w.split = false
	for i, wr := range w.waiting {
		if len(batch) == maxBatch || len(batch) > 0 && size+wr.size > maxBatchBytes {
			rest = append(rest, w.waiting[i:]...)
			break
		}
		if wr.line != "" {
			if slices.Contains(lines, wr.line) {
				rest = append(rest, wr)
				w.split = true
				continue
			}
			lines = append(lines, wr.line)
		}
		size += wr.size
		batch = append(batch, wr)
	}
	clear(w.waiting[len(rest):])
	w.waiting = rest
	return batch, len(rest) > 0
}

// sendAll sends a batch and answers each of its writes. Of a refused one nothing has
// been applied, and all but the culprit are sent again: see sortOut.
func (w *writer) sendAll(batch []*write) {
	var ops []any
	for _, wr := range batch {
		ops = append(ops, wr.ops...)
	}
	r := w.send(ops...)
	if r.outcome != refused || r.op < 0 {
		for _, wr := range batch {
			w.reply(wr, r.of(len(wr.ops)))
			r.skip(len(wr.ops))
		}
		return
	}
	culprit := 0
	for r.op >= len(batch[culprit].ops) {
		r.op -= len(batch[culprit].ops)
		culprit++
	}
	so := sortOut(batch, culprit, r)
	for _, wr := range so.told {
		w.reply(wr, r)
	}
	for _, wr := range so.doubted {
		w.reply(wr, result{outcome: refused, err: errMaybeNoParent})
	}
	var wg sync.WaitGroup
	for _, piece := range so.pieces {
		wg.Go(func() { w.sendAll(piece) })
	}
	wg.Wait()
	if len(so.last) > 0 {
		w.sendAll(so.last)
	}
}

// of is the result of the first n operations.
func (r *result) of(n int) result {
	own := *r
	if r.outcome == applied {
		own.created = r.created[:n]
	}
	return own
}

// skip leaves the first n operations out.
func (r *result) skip(n int) {
	if r.outcome == applied {
		r.created = r.created[n:]
	}
}
