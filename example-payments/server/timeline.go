package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Bounds of a [Timeline]. The oldest key goes first.
const (
	keptKeys    = 256
	keptMoments = 128 // of each key
)

// moment is something that happened to a key in this instance.
type moment struct {
	At   time.Time `json:"at"`
	Step string    `json:"step"` // received, lock, begin, handler, settle, release, replay, refused, doubt or resolve
	Text string    `json:"text"`
}

// Timeline remembers what happened to the latest keys, and tells pages of it live. It is safe for
// concurrent use. Make it with [NewTimeline].
type Timeline struct {
	mu     sync.Mutex
	keys   map[idem.KeyID]*story
	order  []idem.KeyID // oldest first
	closed chan struct{}
	end    sync.Once
}

// story is what is known of one key.
type story struct {
	moments []moment
	dropped int           // moments before the first one
	news    chan struct{} // closed at the next moment
}

// NewTimeline returns a timeline without keys.
func NewTimeline() *Timeline {
	return &Timeline{keys: make(map[idem.KeyID]*story), closed: make(chan struct{})}
}

// Close ends all live pages, so that a shutdown does not wait for them.
func (t *Timeline) Close() { t.end.Do(func() { close(t.closed) }) }

// of returns the story of a key, and begins one. The caller has the lock.
func (t *Timeline) of(id idem.KeyID) *story {
	s := t.keys[id]
	if s == nil {
		if len(t.order) == keptKeys {
			delete(t.keys, t.order[0])
			t.order = t.order[1:]
		}
		s = &story{news: make(chan struct{})}
		t.keys[id] = s
		t.order = append(t.order, id)
	}
	return s
}

// addf tells of a moment.
func (t *Timeline) addf(id idem.KeyID, step, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.of(id)
	if len(s.moments) == keptMoments {
		s.moments = s.moments[1:]
		s.dropped++
	}
	s.moments = append(s.moments, moment{time.Now(), step, fmt.Sprintf(format, args...)})
	close(s.news)
	s.news = make(chan struct{})
}

// after returns the moments from number n on, the number of the next one, and the news of it.
func (t *Timeline) after(id idem.KeyID, n int) (list []moment, next int, news <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.of(id)
	from := min(max(n-s.dropped, 0), len(s.moments)) // a story that made room for others begins anew
	return append(list, s.moments[from:]...), s.dropped + len(s.moments), s.news
}

// Observe is an [idem.Observer].
func (t *Timeline) Observe(_ context.Context, ev idem.Event) {
	id, number, f := ev.KeyID, ev.Attempt.Number, ev.Attempt.Fence
	if id == (idem.KeyID{}) {
		return
	}
	taken, freed, where := fmt.Sprintf("the key is locked, fence %d", f.Token), "the lock is given back", "the token store"
	if f.Domain == idem.JoinedDomain {
		taken, freed, where = "the payment's transaction holds the key", "the transaction is over", "the same transaction"
	}
	switch ev.Type {
	case idem.EventBegun:
		t.addf(id, "lock", "%s", taken)
		t.addf(id, "begin", "attempt %d is noted in %s", number, where)
	case idem.EventCompleted:
		t.addf(id, "settle", "the answer is stored")
		t.addf(id, "release", "%s", freed)
	case idem.EventReleased:
		t.addf(id, "settle", "nothing happened, so the next request may run")
		t.addf(id, "release", "%s", freed)
	case idem.EventUnknown:
		t.addf(id, "doubt", "attempt %d ended in doubt", number)
	case idem.EventInterrupted:
		t.addf(id, "doubt", "attempt %d was interrupted: its holder is gone", number)
	case idem.EventResolved:
		t.addf(id, "resolve", "the ledger was asked: %s", resolved(ev.State))
	case idem.EventReplayed:
		t.addf(id, "replay", "the stored answer is sent again, and nothing runs")
	case idem.EventJoined, idem.EventWaited:
		t.addf(id, "replay", "a repeat waits for the first request")
	case idem.EventRefused:
		t.addf(id, "refused", "refused: %s", ev.Code)
	case idem.EventConflict:
		t.addf(id, "doubt", "the transaction met a conflict and was rolled back")
	}
}

// Step tells of a step of a charge, for payments.Service.
func (t *Timeline) Step(_ context.Context, step string, x idem.Execution) {
	switch step {
	case "before-ledger":
		t.addf(x.KeyID, "handler", "the handler runs attempt %d", x.Attempt)
	case "after-ledger":
		t.addf(x.KeyID, "handler", "the payment is written")
	}
}

// resolved puts the finding of the resolver into words.
func resolved(s idem.State) string {
	switch s {
	case idem.StateCompleted:
		return "the money has moved"
	case idem.StateUnknown:
		return "it cannot tell"
	}
	return "no money has moved"
}

// received tells of a request with a valid key, before anything else happens.
func (s *Server) received(c *gin.Context) {
	key, err := idem.ParseKey(c.Request.Header.Values("Idempotency-Key"))
	if err == nil {
		s.cfg.Timeline.addf(idem.NewKeyID(merchantOf(c), key), "received", "a request arrives")
	}
}

// heartbeat keeps proxies from cutting a quiet page off.
const heartbeat = 15 * time.Second

// live sends the timeline of the caller's key as server-sent events (HTML, section 9.2), until
// the client leaves. The key is in a header, so it is in no log of a proxy.
func (s *Server) live(c *gin.Context) {
	key, err := idem.ParseKey(c.Request.Header.Values("Idempotency-Key"))
	if err != nil {
		abort(c, string(idem.CodeKeyMissing), "Send the key whose timeline you want in Idempotency-Key.")
		return
	}
	id := idem.NewKeyID(merchantOf(c), key)
	c.Header("Content-Type", "text/event-stream")
	c.Header("Cache-Control", "no-store")
	c.Header("X-Accel-Buffering", "no")
	c.Status(http.StatusOK)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for n := 0; ; {
		list, next, news := s.cfg.Timeline.after(id, n)
		for i, m := range list {
			data, err := json.Marshal(m)
			if err != nil {
				return
			}
			if _, err := fmt.Fprintf(c.Writer, "id: %d\ndata: %s\n\n", next-len(list)+i+1, data); err != nil {
				return
			}
		}
		n = next
		c.Writer.Flush()
		select {
		case <-news:
		case <-beat.C:
			if _, err := c.Writer.WriteString(": still here\n\n"); err != nil {
				return
			}
		case <-c.Request.Context().Done():
			return
		case <-s.cfg.Timeline.closed:
			return
		}
	}
}
