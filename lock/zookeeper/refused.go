package zookeeper

import (
	"errors"
	"path"
	"slices"

	"github.com/go-zookeeper/zk"
)

// sorted is what becomes of the writes of a refused Multi.
type sorted struct {
	// told are refused for certain: the culprit, and those that ask for a child of
	// the same parent where the parent is the reason.
	told []*write
	// doubted are locks that are refused on suspicion: like the culprit, whose parent
	// is missing, they were sent before the session had looked which there are.
	doubted []*write
	// pieces are sent next, all at the same time. The writes in front of the culprit
	// had no error and stay together. The others are split into pieces as long as
	// that stretch was, since it tells how dense the culprits are. A piece has at
	// most half as many writes as the batch, so 128 writes take eight rounds at the
	// worst, and two or three where half of them are culprits in no order. There are
	// fewer pieces than writes in the batch, which maxBatch bounds. (With 16 pieces at
	// most, free locks waited a third longer in BenchmarkConflicts.)
	pieces [][]*write
	// last are sent after the pieces have been answered. The servers judge a write by
	// what those in front of it in the Multi would have done. If one of them concerns
	// the culprit's znodes, it may be the only reason, and it may never be applied.
	last []*write
}

// sortOut decides what becomes of the writes of a refused Multi. The servers name
// its first culprit only, and others may follow. Sending all the rest again after
// each culprit would make a free lock wait for a round trip per held one.
func sortOut(batch []*write, culprit int, r result) (so sorted) {
	refused, front, rest := batch[culprit], batch[:culprit], batch[culprit+1:]
	certain := !slices.ContainsFunc(front, refused.concerns)
	if certain {
		so.told = append(so.told, refused)
	} else {
		so.last = append(so.last, refused)
	}
	if culprit > 0 {
		so.pieces = append(so.pieces, front)
	}
	size := max(1, culprit)
	open := len(so.pieces) // the piece that is being filled
	for _, wr := range rest {
		switch {
		case certain && r.parentless() && wr.besides(refused):
			so.told = append(so.told, wr)
		case certain && r.refusedBy(zk.ErrNoNode) && wr.bold && refused.bold:
			so.doubted = append(so.doubted, wr)
		case !certain && wr.concerns(refused):
			so.last = append(so.last, wr)
		default:
			if open < len(so.pieces) && len(so.pieces[open]) >= size {
				open = len(so.pieces)
			}
			if open == len(so.pieces) {
				so.pieces = append(so.pieces, nil)
			}
			so.pieces[open] = append(so.pieces[open], wr)
		}
	}
	return so
}

// parentless says that a write was refused because its first operation found no
// parent, or one that it may not use.
func (r result) parentless() bool {
	return r.op == 0 && (errors.Is(r.err, zk.ErrNoNode) || errors.Is(r.err, zk.ErrNoAuth))
}

// besides says that both writes begin with creating a child of the same parent.
func (wr *write) besides(other *write) bool {
	a, ok := wr.ops[0].(*zk.CreateRequest)
	b, too := other.ops[0].(*zk.CreateRequest)
	return ok && too && path.Dir(a.Path) == path.Dir(b.Path)
}

// concerns says that what one of the writes does can decide whether the other is
// refused: they are about one line, one znode, or a znode and its parent.
func (wr *write) concerns(other *write) bool {
	for _, op := range wr.ops {
		a := pathOf(op)
		for _, op := range other.ops {
			if b := pathOf(op); a == b || path.Dir(a) == b || path.Dir(b) == a {
				return true
			}
		}
	}
	return false
}
