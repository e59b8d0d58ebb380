package zookeeper

import (
	"errors"
	"path"
	"slices"

	"github.com/go-zookeeper/zk"
)

// maxPieces bounds how many Multis the rest of a refused one is sent in.
const maxPieces = 16

// sortOut decides what becomes of the writes of a refused Multi. The servers name
// its first culprit only, and others may follow. Sending all the rest again after
// each culprit would make a free lock wait for a round trip per held one.
//
//   - told are refused for certain: the culprit, and those that ask for a child of
//     the same parent where the parent is the reason.
//   - pieces are sent next, all at the same time. The writes in front of the culprit
//     had no error and stay together. The others are split into pieces as long as
//     that stretch was, since it tells how dense the culprits are. A piece has at
//     most half as many writes as the batch, so 128 writes take eight rounds at the
//     worst, and four where half of them are culprits in no order.
//   - last are sent after the pieces have been answered. The servers judge a write by
//     what those in front of it in the Multi would have done. If one of them concerns
//     the culprit's znodes, it may be the only reason, and it may never be applied.
//
// Two places in one line stay in one piece, so that neither overtakes the other.
func sortOut(batch []*write, culprit int, r result) (told []*write, pieces [][]*write, last []*write) {
	refused, front, rest := batch[culprit], batch[:culprit], batch[culprit+1:]
	certain := !slices.ContainsFunc(front, refused.concerns)
	if certain {
		told = append(told, refused)
	} else {
		last = append(last, refused)
	}
	home := make(map[string]int) // the piece of each line
	add := func(piece int, wr *write) {
		pieces[piece] = append(pieces[piece], wr)
		if wr.line != "" {
			home[wr.line] = piece
		}
	}
	if culprit > 0 {
		pieces = append(pieces, nil)
	}
	for _, wr := range front {
		add(0, wr)
	}
	size := max(1, culprit, (len(rest)+maxPieces-1)/maxPieces)
	open := len(pieces) // the piece that is being filled
	for _, wr := range rest {
		piece, atHome := home[wr.line]
		switch {
		case certain && r.parentless() && wr.besides(refused):
			told = append(told, wr)
		case !certain && wr.concerns(refused):
			last = append(last, wr)
		case atHome:
			add(piece, wr)
		default:
			if open < len(pieces) && len(pieces[open]) >= size {
				open = len(pieces)
			}
			if open == len(pieces) {
				pieces = append(pieces, nil)
			}
			add(open, wr)
		}
	}
	return told, pieces, last
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
	if wr.line != "" && wr.line == other.line {
		return true
	}
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
