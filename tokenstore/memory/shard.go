package memorystore

import (
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// shard is one part of the records, behind its own lock.
type shard struct {
	mu     sync.Mutex
	base   time.Time
	index  map[idem.KeyID]place // where each record is
	live   []*entry             // whose attempt is open or is yet to come; nil where a number is free
	free   []uint32             // numbers of live
	idle   []*entry             // zero ones, to be used again
	closed pages                // completed and expired ones, packed
	due    dueHeap              // when to look at entries again, earliest first
	buf    []byte               // for a response on its way to a page
}

// What is kept for its memory: so many entries, and a buffer of so many bytes.
const (
	maxIdle = 8
	maxBuf  = 4 << 10
)

// entry is a record and what is kept beside it.
type entry struct {
	id     idem.KeyID // where it is live
	record idem.Record
	// settlement is the ID of the settlement that stands, zero where none does.
	settlement idem.Nonce
	// repaired says that the settlement took the place of an older record.
	repaired bool
	// before is what a pending entry replaced. Abort puts it back where it is issued
	// or released.
	before *entry
}

// fresh returns a zero entry.
func (sh *shard) fresh() *entry {
	last := len(sh.idle) - 1
	if last < 0 {
		return new(entry)
	}
	e := sh.idle[last]
	sh.idle = sh.idle[:last]
	return e
}

// get returns the entry of id, nil where there is none. A closed one is a copy.
func (sh *shard) get(id idem.KeyID) *entry {
	at, ok := sh.index[id]
	switch {
	case !ok:
		return nil
	case at.page == 0:
		return sh.live[at.at]
	default:
		return unpack(sh.closed.record(at), sh.base)
	}
}

// put stores e and plans when it is looked at again. response is that of a
// completed record, packed. A closed entry must not be used any more after that.
func (sh *shard) put(id idem.KeyID, e *entry, response []byte) {
	e.id = id
	deadline := e.deadline()
	if !deadline.IsZero() {
		sh.due.push(due{at: deadline.Sub(sh.base), id: id})
	}
	old, had := sh.index[id]
	if state := e.record.State; state != idem.StateCompleted && state != idem.StateExpired {
		if had && old.page == 0 { // itself, or what it replaces
			sh.live[old.at] = e
			return
		}
		sh.index[id] = sh.enter(e)
	} else {
		at, buf := sh.closed.reserve(deadline.Sub(e.record.Since()), e.packedSize(response))
		sh.closed.add(at, e.pack(buf, sh.base, response))
		sh.index[id] = at
	}
	if had {
		sh.release(old)
	}
}

// enter gives a number to a live entry.
func (sh *shard) enter(e *entry) place {
	if last := len(sh.free) - 1; last >= 0 {
		n := sh.free[last]
		sh.free = sh.free[:last]
		sh.live[n] = e
		return place{at: n}
	}
	sh.live = append(sh.live, e)
	return place{at: uint32(len(sh.live) - 1)}
}

// remove forgets what is known of id.
func (sh *shard) remove(id idem.KeyID) {
	if at, ok := sh.index[id]; ok {
		delete(sh.index, id)
		sh.release(at)
	}
}

// release gives back what is at a place.
func (sh *shard) release(at place) {
	if at.page != 0 {
		sh.closed.remove(at)
		return
	}
	e := sh.live[at.at]
	sh.live[at.at] = nil
	sh.free = append(sh.free, at.at)
	if len(sh.idle) < maxIdle {
		*e = entry{}
		sh.idle = append(sh.idle, e)
	}
}
