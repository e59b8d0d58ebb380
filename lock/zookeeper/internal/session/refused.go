package session

import (
	"errors"
	"path"
	"slices"

	"github.com/go-zookeeper/zk"
)

// sorted is the writes of a refused Multi, by their fate.
type sorted struct {
	// told are refused for certain. They are the culprit and, if its parent is the
	// reason, all other writes for a child of that parent.
	told []*write
	// pieces are sent next, all at the same time. The writes in front of the culprit
	// had no error and stay together. The others are split into pieces as long as
	// that stretch was, since it shows how dense the culprits are. A piece has at most
	// half as many writes as the batch, so 128 writes take eight rounds at the worst,
	// and two or three if half of them are culprits in no order. (With 16 pieces at
	// most, the free locks among 128 waited a third longer.)
	pieces [][]*write
	// last is the culprit if it is not told, or nil. It is sent after the pieces have been
	// answered. The servers judge a write as if those in front of it in the Multi had been
	// applied. If one of them concerns the culprit's znodes, it may be the only reason, and it
	// may never be applied.
	last *write
}

// sortOut divides the writes of a refused Multi. The servers name its
// first culprit only, and others may follow. If all the rest were sent again after each
// culprit, one valid write would wait for a round trip per invalid one.
func sortOut(batch []*write, culprit int, r Result) (so sorted) {
	refused, front, rest := batch[culprit], batch[:culprit], batch[culprit+1:]
	certain := !slices.ContainsFunc(front, refused.concerns)
	if certain {
		so.told = append(so.told, refused)
	} else {
		so.last = refused
	}
	if culprit > 0 {
		so.pieces = append(so.pieces, front)
	}
	var others []*write
	for _, wr := range rest {
		switch {
		case certain && r.parentless() && wr.besides(refused):
			so.told = append(so.told, wr)
		default:
			others = append(others, wr)
		}
	}
	so.pieces = slices.AppendSeq(so.pieces, slices.Chunk(others, max(1, culprit)))
	return so
}

// parentless reports whether a write was refused because its first operation found no
// parent, or may not use it.
func (r Result) parentless() bool {
	return r.Op == 0 && (errors.Is(r.Err, zk.ErrNoNode) || errors.Is(r.Err, zk.ErrNoAuth))
}

// besides reports whether both writes begin by creating a child of the same parent.
func (wr *write) besides(other *write) bool {
	if len(wr.Ops) == 0 {
		return false
	}
	a, ok := wr.Ops[0].(*zk.CreateRequest)
	b, too := other.Ops[0].(*zk.CreateRequest)
	return ok && too && path.Dir(a.Path) == path.Dir(b.Path)
}

// concerns reports whether the operations of one write can decide whether the other is
// refused. They are about one znode, or about a znode and its parent.
func (wr *write) concerns(other *write) bool {
	for _, op := range wr.Ops {
		a := pathOf(op)
		for _, op := range other.Ops {
			if b := pathOf(op); a == b || path.Dir(a) == b || path.Dir(b) == a {
				return true
			}
		}
	}
	return false
}
