package memorystore

import (
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// due says when an entry has to be looked at again.
type due struct {
	at time.Duration // since shard.base
	id idem.KeyID
}

// dueHeap is a binary heap, earliest first. container/heap would allocate for
// each push.
type dueHeap []due

func (h *dueHeap) push(d due) {
	*h = append(*h, d)
	s, i := *h, len(*h)-1
	for i > 0 {
		parent := (i - 1) / 2
		if s[i].at >= s[parent].at {
			return
		}
		s[i], s[parent] = s[parent], s[i]
		i = parent
	}
}

func (h *dueHeap) pop() due {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	*h = s
	for i := 0; ; {
		next := 2*i + 1
		if next >= last {
			return top
		}
		if right := next + 1; right < last && s[right].at < s[next].at {
			next = right
		}
		if s[next].at >= s[i].at {
			return top
		}
		s[i], s[next] = s[next], s[i]
		i = next
	}
}

// sweep removes what is due: results first, keys later. A plan that was
// overtaken by another state finds nothing to do. The work is paid for by the
// calls that made the plans. It reports whether anything was due.
func (sh *shard) sweep(now time.Time) (some bool) {
	for ; len(sh.due) > 0 && sh.due[0].at <= now.Sub(sh.base); some = true {
		id := sh.due.pop().id
		e := sh.get(id)
		if e == nil {
			continue
		}
		at := e.deadline()
		if at.IsZero() || at.After(now) {
			continue // planned anew when it came to that state
		}
		if e.record.State == idem.StateCompleted && e.record.KeyExpires.After(now) {
			e.record.State, e.record.Response = idem.StateExpired, nil
			sh.put(id, e, nil)
			continue
		}
		sh.remove(id)
	}
	return some
}

// deadline is when the entry changes by itself; zero: never.
func (e *entry) deadline() time.Time {
	r := &e.record
	switch r.State {
	case idem.StateIssued:
		return r.TokenExpires
	case idem.StateCompleted:
		return r.ResultExpires
	case idem.StateReleased, idem.StateExpired:
		return r.KeyExpires
	}
	return time.Time{}
}
