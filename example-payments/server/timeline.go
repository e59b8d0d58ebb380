package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// Bounds of a [Timeline] for each merchant, so that no merchant takes the place of another.
const (
	keptKeys    = 64  // the oldest key goes first, unless a page shows it
	keptMoments = 128 // of each key; the oldest goes first
	mostStreams = 16  // pages that are open at once
)

// moment is something that happened to a key in this instance.
type moment struct {
	At   time.Time `json:"at"`
	Step string    `json:"step"` // received, lock, begin, handler, settle, release, replay, refused, doubt or resolve
	Text string    `json:"text"`
}

// Timeline remembers what happened to the latest keys of each merchant, and tells pages of it live.
// It is safe for concurrent use. Make it with [NewTimeline].
type Timeline struct {
	mu      sync.Mutex
	stories map[driver.KeyID]*story
	shelves map[string]*shelf // by merchant
	closed  chan struct{}
	end     sync.Once
}

// shelf has the stories of a merchant.
type shelf struct {
	stories []*story // oldest first
	streams int
}

// story is what is known of one key.
type story struct {
	id      driver.KeyID
	moments []moment
	dropped int           // moments before the first one
	news    chan struct{} // closed at the next moment
	streams int           // pages that show it
	told    int           // moments that a page has got
}

// NewTimeline returns a timeline without keys.
func NewTimeline() *Timeline {
	return &Timeline{stories: make(map[driver.KeyID]*story), shelves: make(map[string]*shelf), closed: make(chan struct{})}
}

// Close ends all live pages, so that a shutdown does not wait for them.
func (t *Timeline) Close() { t.end.Do(func() { close(t.closed) }) }

// shelf returns the shelf of a merchant. The caller has the lock.
func (t *Timeline) shelf(merchant string) *shelf {
	s := t.shelves[merchant]
	if s == nil {
		s = &shelf{}
		t.shelves[merchant] = s
	}
	return s
}

// story returns the story of a merchant's key, and begins one. The caller has the lock.
func (t *Timeline) story(merchant string, id driver.KeyID) *story {
	if s := t.stories[id]; s != nil {
		return s
	}
	mine := t.shelf(merchant)
	if len(mine.stories) == keptKeys { // more than there are streams, so one has no page
		oldest := slices.IndexFunc(mine.stories, func(s *story) bool { return s.streams == 0 })
		delete(t.stories, mine.stories[oldest].id)
		mine.stories = slices.Delete(mine.stories, oldest, oldest+1)
	}
	s := &story{id: id, news: make(chan struct{})}
	t.stories[id] = s
	mine.stories = append(mine.stories, s)
	return s
}

// addf tells of a moment. Without a merchant it tells only of a key that is known already, for
// example when the sweeper settles an attempt.
func (t *Timeline) addf(merchant string, id driver.KeyID, step, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if merchant == "" && t.stories[id] == nil {
		return
	}
	s := t.story(merchant, id)
	if len(s.moments) == keptMoments {
		s.moments = s.moments[1:]
		s.dropped++
	}
	s.moments = append(s.moments, moment{time.Now(), step, fmt.Sprintf(format, args...)})
	close(s.news)
	s.news = make(chan struct{})
}

// follow begins a stream of a merchant's key. The story stays until end is called. It returns
// nil if the merchant has too many streams.
func (t *Timeline) follow(merchant string, id driver.KeyID) (s *story, end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := t.shelf(merchant)
	if mine.streams == mostStreams {
		return nil, nil
	}
	s = t.story(merchant, id)
	mine.streams++
	s.streams++
	return s, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		mine.streams--
		s.streams--
		if s.streams == 0 && len(s.moments) == 0 { // nothing happened to the key
			delete(t.stories, id)
			mine.stories = slices.DeleteFunc(mine.stories, func(other *story) bool { return other == s })
		}
	}
}

// after returns the moments from number n on, the number of the next one, and the news of it.
func (t *Timeline) after(s *story, n int) (list []moment, next int, news <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	from := max(n-s.dropped, 0)
	return append(list, s.moments[from:]...), s.dropped + len(s.moments), s.news
}

// AwaitTold waits until the pages have got every moment so far, or until limit is over. A process that
// is about to crash calls it, so that its pages show what came before.
func (t *Timeline) AwaitTold(limit time.Duration) {
	for end := time.Now().Add(limit); !t.told() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

func (t *Timeline) told() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.stories {
		if s.streams > 0 && s.told < s.dropped+len(s.moments) {
			return false
		}
	}
	return true
}

// tell notes that a page has got the moments before number n.
func (t *Timeline) tell(s *story, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.told = max(s.told, n)
}

// uncommitted tells that a payment is written in a joined transaction.
const uncommitted = "the payment is written, not yet committed"

// wroteLast reports whether the latest handler of a key has come as far as to write its payment.
func (t *Timeline) wroteLast(id driver.KeyID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.stories[id]; s != nil {
		for _, m := range slices.Backward(s.moments) {
			if m.Step == "handler" {
				return m.Text == uncommitted
			}
		}
	}
	return false
}

// Observe is an [telemetry.Observer].
func (t *Timeline) Observe(ctx context.Context, ev telemetry.Event) {
	id, number, f := ev.KeyID, ev.Attempt.Number, ev.Attempt.Fence
	if id == (driver.KeyID{}) {
		return
	}
	addf := func(step, format string, args ...any) { t.addf(payments.MerchantOf(ctx), id, step, format, args...) }
	taken, begun, freed := fmt.Sprintf("the key is locked under fence %d, a number that grows with each holder", f.Token), fmt.Sprintf("attempt %d is noted in the token store", number), "the lock is given back"
	stored, undone := "the answer is stored", "nothing happened, so the next request may run"
	if f.Domain == driver.JoinedDomain {
		// A rollback takes the number along, so the next attempt would be the first one again.
		taken, begun, freed = "the payment's transaction holds the key", "an attempt is noted in the same transaction", "the transaction is over"
		undone = "the database rolled back: nothing was charged"
		if t.wroteLast(id) { // a refusal, such as 402, is stored alone
			stored = "payment and answer commit together"
		}
	}
	switch ev.Type {
	case telemetry.EventBegun:
		addf("lock", "%s", taken)
		addf("begin", "%s", begun)
	case telemetry.EventCompleted:
		addf("settle", "%s", stored)
		addf("release", "%s", freed)
	case telemetry.EventReleased:
		addf("settle", "%s", undone)
		addf("release", "%s", freed)
	case telemetry.EventUnknown:
		addf("doubt", "attempt %d ended in doubt", number)
	case telemetry.EventInterrupted:
		addf("doubt", "attempt %d was interrupted: its holder is gone", number)
	case telemetry.EventResolved:
		who := "the ledger was asked"
		if (driver.Decision{By: ev.By}).ByPerson() {
			who = ev.By + " decided"
		}
		addf("resolve", "%s: %s", who, resolved(ev.State))
	case telemetry.EventUnresolved:
		addf("resolve", "the ledger was asked: it cannot tell")
	case telemetry.EventReplayed:
		addf("replay", "the stored answer, and nothing runs")
	case telemetry.EventJoined, telemetry.EventWaited:
		addf("replay", "a repeat waits for the first request")
	case telemetry.EventRefused:
		code := idem.Code(ev.Code)
		why, ok := refusals[code]
		if !ok {
			why = code.Title()
		}
		addf("refused", "%s (%s)", why, code)
	case telemetry.EventConflict:
		addf("doubt", "the transaction met a conflict and was rolled back")
	}
}

// Step tells of a step of a charge, for payments.Service.
func (t *Timeline) Step(ctx context.Context, step string, x idem.Execution) {
	joined := x.Fence == (driver.Fence{})
	switch step {
	case "before-ledger":
		text := fmt.Sprintf("the handler runs attempt %d", x.Attempt)
		if joined {
			text = "the handler runs"
		}
		t.addf(payments.MerchantOf(ctx), x.KeyID, "handler", "%s", text)
	case "after-ledger":
		text := "the payment is written"
		if joined {
			text = uncommitted
		}
		t.addf(payments.MerchantOf(ctx), x.KeyID, "handler", "%s", text)
	}
}

// refusals are the refusals that the page can cause, in words for people who try the sample out.
var refusals = map[idem.Code]string{
	idem.CodeInProgress:     "the first one still runs",
	idem.CodeKeyReused:      "the key belongs to another request",
	idem.CodeOutcomeUnknown: "nobody knows yet whether the money has moved",
}

// resolved puts the finding of the resolver into words.
func resolved(s driver.State) string {
	if s == driver.StateCompleted {
		return "the money has moved"
	}
	return "no money has moved"
}

// received tells of a request with a valid key, before anything else happens.
func (s *Server) received(c *gin.Context) {
	key, err := idem.ParseKey(c.Request.Header.Values("Idempotency-Key"))
	if err == nil {
		s.cfg.Timeline.addf(merchantOf(c), idem.NewKeyID(merchantOf(c), key), "received", "a request arrives")
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
	followed, end := s.cfg.Timeline.follow(merchantOf(c), idem.NewKeyID(merchantOf(c), key))
	if followed == nil {
		abort(c, codeTooManyStreams, "Close a page that shows a timeline, and try again.")
		return
	}
	defer end()
	c.Header("Content-Type", "text/event-stream")
	c.Header("Cache-Control", "no-store")
	c.Header("X-Accel-Buffering", "no")
	// Without chunks the end of the connection is the end of the stream and no error. A browser
	// drops what its page has not read before an error, and a crash would take its last moments along.
	c.Header("Transfer-Encoding", "identity")
	c.Status(http.StatusOK)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for n := 0; ; {
		list, next, news := s.cfg.Timeline.after(followed, n)
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
		s.cfg.Timeline.tell(followed, n)
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
