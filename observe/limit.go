package observe

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Repeated is the attribute of a line for several records. Its value is their number.
const Repeated = "repeated"

// limitEvery is the pause between two lines of one reason.
const limitEvery = time.Second

// mostReasons is how many reasons are told apart. Beyond it the message alone is the
// reason.
const mostReasons = 1000

// LimitHandler is a [slog.Handler] in front of another one. Records below
// [slog.LevelWarn] pass. For every other reason the first record passes at once, and
// later ones are counted. Once a second the latest record is logged for them, with their
// number in the attribute "repeated". The last count follows within a second too, so that
// the counts and the lines without a count add up to all records. A reason that has been
// quiet for a second is new again.
//
// A reason is the level, the message, the attributes event, code, route, method, state,
// call and panic, and the text of err or error without the words that have a digit, such
// as numbers, addresses and hashes.
//
// It is safe for concurrent use. Make it with [NewLimitHandler], and call Flush at the
// end of the process.
type LimitHandler struct {
	next   slog.Handler
	prefix string // the part of a reason from WithAttrs and WithGroup
	shared *reasons
}

var _ slog.Handler = (*LimitHandler)(nil)

// reasons belong to a handler and to those derived from it.
type reasons struct {
	mu   sync.Mutex
	seen map[string]*reason
}

// reason was logged less than a second ago.
type reason struct {
	timer *time.Timer
	count int // of records that were not logged
	last  slog.Record
	to    slog.Handler
}

// NewLimitHandler returns a handler in front of next.
func NewLimitHandler(next slog.Handler) *LimitHandler {
	if next == nil {
		next = slog.Default().Handler()
	}
	return &LimitHandler{next: next, shared: &reasons{seen: map[string]*reason{}}}
}

// Enabled asks the next handler.
func (h *LimitHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// WithAttrs implements [slog.Handler].
func (h *LimitHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var prefix strings.Builder
	prefix.WriteString(h.prefix)
	for _, a := range attrs {
		prefix.WriteString(identity(a))
	}
	return &LimitHandler{next: h.next.WithAttrs(attrs), prefix: prefix.String(), shared: h.shared}
}

// WithGroup implements [slog.Handler].
func (h *LimitHandler) WithGroup(name string) slog.Handler {
	return &LimitHandler{next: h.next.WithGroup(name), prefix: h.prefix + name + ".", shared: h.shared}
}

// Handle passes a record on, or counts it.
func (h *LimitHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return h.next.Handle(ctx, r)
	}
	if h.shared.counted(h.reasonOf(&r), &r, h.next) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// Flush logs the remaining counts at once.
func (h *LimitHandler) Flush() {
	s := h.shared
	s.mu.Lock()
	left := s.seen
	s.seen = map[string]*reason{}
	s.mu.Unlock()
	for _, re := range left {
		re.timer.Stop()
		re.tell()
	}
}

// counted reports whether a record was counted instead of being logged now.
func (s *reasons) counted(key string, r *slog.Record, to slog.Handler) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) >= mostReasons && s.seen[key] == nil {
		key = r.Message
	}
	if re := s.seen[key]; re != nil {
		re.count++
		re.last, re.to = r.Clone(), to
		return true
	}
	re := &reason{}
	re.timer = time.AfterFunc(limitEvery, func() { s.due(key, re) })
	s.seen[key] = re
	return false
}

// due logs the count of a reason that was logged a second ago. Without a count the reason
// is over.
func (s *reasons) due(key string, re *reason) {
	s.mu.Lock()
	if s.seen[key] != re { // flushed
		s.mu.Unlock()
		return
	}
	if re.count == 0 {
		delete(s.seen, key)
		s.mu.Unlock()
		return
	}
	now := reason{count: re.count, last: re.last, to: re.to}
	re.count, re.last = 0, slog.Record{}
	re.timer.Reset(limitEvery)
	s.mu.Unlock()
	now.tell()
}

// tell logs the latest record for all counted ones.
func (re *reason) tell() {
	if re.count == 0 {
		return
	}
	re.last.AddAttrs(slog.Int(Repeated, re.count))
	_ = re.to.Handle(context.Background(), re.last) // no caller waits for the error
}

func (h *LimitHandler) reasonOf(r *slog.Record) string {
	var b strings.Builder
	b.WriteString(r.Level.String())
	b.WriteByte(' ')
	b.WriteString(r.Message)
	b.WriteString(h.prefix)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteString(identity(a))
		return true
	})
	return b.String()
}

// identity returns the part of a reason from an attribute.
func identity(a slog.Attr) string {
	switch a.Key {
	case "event", "code", "route", "method", "state", "call", "panic":
		return " " + a.Key + "=" + a.Value.String()
	case "err", "error":
		return " " + a.Key + "=" + steady(a.Value.String())
	}
	return ""
}

// mostText is how much of an error's text is compared, in bytes.
const mostText = 300

// steady leaves out the words with a digit, because they change from record to record.
func steady(text string) string {
	words := strings.FieldsFunc(text[:min(len(text), mostText)], func(r rune) bool { return r == ' ' || r == '/' || r == ':' })
	kept := words[:0]
	for _, w := range words {
		if !strings.ContainsAny(w, "0123456789") {
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, " ")
}
