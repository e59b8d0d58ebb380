package zookeeper

import (
	"slices"

	"github.com/go-zookeeper/zk"
)

// Writes that wait at the same moment share a Multi (group commit): one
// transaction, one write to the servers' disks, one answer. Whose outcome is
// known is not changed by that: a Multi is applied as a whole or not at all, and
// a refused one names its culprit.
const (
	// maxBatch bounds the writes of a Multi. Larger ones gain little and make
	// everybody wait longer when one is refused.
	maxBatch = 128
	// maxBatchBytes keeps a Multi well below the servers' jute.maxbuffer
	// (1 MiB). A write that is larger than this goes alone.
	maxBatchBytes = 256 << 10
)

func newWrite(ops []any) *write {
	wr := &write{ops: ops, answer: make(chan result, 1)}
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

// next takes the writes for one Multi off the queue, in their order, and says
// whether there are more.
//
// What a Multi creates has one czxid in common, so two places in one line never
// share one: they would have the same fence. Locks of different keys may.
func (w *writer) next() (batch []*write, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	size := 0
	var lines []string
	rest := w.waiting[:0]
	for i, wr := range w.waiting {
		if len(batch) == maxBatch || len(batch) > 0 && size+wr.size > maxBatchBytes {
			rest = append(rest, w.waiting[i:]...)
			break
		}
		if wr.line != "" && slices.Contains(lines, wr.line) {
			rest = append(rest, wr)
			continue
		}
		if wr.line != "" {
			lines = append(lines, wr.line)
		}
		size += wr.size
		batch = append(batch, wr)
	}
	clear(w.waiting[len(rest):])
	w.waiting = rest
	return batch, len(rest) > 0
}

// sendAll sends a batch and answers each of its writes. When it is refused, the
// culprit is told so and the others, of which nothing has been applied, are sent
// again; after a second refusal one by one, so that a batch of many culprits
// costs no more than its writes would have alone.
func (w *writer) sendAll(batch []*write) {
	for refusals := 0; len(batch) > 1 && refusals < 2; refusals++ {
		var ops []any
		for _, wr := range batch {
			ops = append(ops, wr.ops...)
		}
		r := w.send(ops...)
		if r.outcome != refused || r.op < 0 {
			for _, wr := range batch {
				wr.answer <- r.of(len(wr.ops))
				r.skip(len(wr.ops))
			}
			return
		}
		i := 0
		for r.op >= len(batch[i].ops) {
			r.op -= len(batch[i].ops)
			i++
		}
		batch[i].answer <- r
		batch = slices.Delete(batch, i, i+1)
	}
	for _, wr := range batch {
		wr.answer <- w.send(wr.ops...)
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
