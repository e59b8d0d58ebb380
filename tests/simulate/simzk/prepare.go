package simzk

import (
	"slices"
	"time"
)

// txn is an entry of the log. The leader has decided everything about it, so that every
// server applies it in the same way.
type txn struct {
	zxid, session int64
	time          int64 // ms since 1970, by the leader's clock
	code          int32 // of the request, or opError if it was refused as a whole
	ops           []op
	refused       bool   // a Multi of which nothing is applied
	origin        *entry // the request, for the server that has it
}

// prepare decides a request. It applies the result to the leader's view, which is ahead of
// what is committed.
func (e *Ensemble) prepare(session int64, from *server, code int32, ops []op) *txn {
	tx := &txn{zxid: e.nextZxid(), session: session, time: time.Now().UnixMilli(), code: code}
	refuse := func(code int32) *txn {
		tx.code, tx.ops = opError, []op{{code: opError, failed: code}}
		return tx
	}
	s := e.sessions[session]
	switch {
	case code == opCreateSession:
		return tx
	case s == nil || s.closing:
		return refuse(codeSessionExpired)
	case from != nil && s.owner != from: // the leader itself closes sessions and containers
		return refuse(codeSessionMoved)
	}
	switch code {
	case opCloseSession:
		s.closing = true
		for _, path := range e.latest.ephemerals(session) {
			tx.ops = append(tx.ops, op{code: opDelete, path: path, version: -1})
		}
		for i := range tx.ops {
			e.latest.apply(tx, &tx.ops[i])
		}
	case opMulti:
		e.prepareMulti(tx, ops)
	default:
		decided, failed := e.latest.judge(session, ops[0])
		if failed != codeOK {
			return refuse(failed)
		}
		tx.ops = []op{decided}
		e.latest.apply(tx, &tx.ops[0])
	}
	return tx
}

// prepareMulti decides the operations of a Multi one after the other. If one of them is
// refused, it takes all of them back.
func (e *Ensemble) prepareMulti(tx *txn, ops []op) {
	var before []saved
	for i, o := range ops {
		decided, failed := e.latest.judge(tx.session, o)
		if failed == codeOK {
			before = append(before, e.latest.save(decided.path), e.latest.save(parentOf(decided.path)))
			tx.ops = append(tx.ops, decided)
			e.latest.apply(tx, &tx.ops[len(tx.ops)-1])
			continue
		}
		for _, saved := range slices.Backward(before) {
			e.latest.restore(saved)
		}
		tx.refused, tx.ops = true, nil
		for j := range ops {
			code := codeOK
			switch {
			case j == i:
				code = failed
			case j > i:
				code = codeInconsistency
			}
			tx.ops = append(tx.ops, op{code: opError, failed: code})
		}
		return
	}
}

// saved is a znode as it was, or nil without one.
type saved struct {
	path string
	was  *znode
}

func (t tree) save(path string) saved {
	z := t[path]
	if z == nil {
		return saved{path, nil}
	}
	copied := *z
	copied.children = make(map[string]bool, len(z.children))
	for name := range z.children {
		copied.children[name] = true
	}
	return saved{path, &copied}
}

func (t tree) restore(s saved) {
	if s.was == nil {
		delete(t, s.path)
	} else {
		t[s.path] = s.was
	}
}
