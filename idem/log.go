package idem

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// This file is what an engine logs by itself ([WithLogger]), so that no fault of the server is known to its clients alone.

const (
	// logPause is the time between two lines of one fault.
	logPause = time.Minute
	// logWait bounds how long a request waits for the logger.
	logWait = 100 * time.Millisecond
	// maxFaults is how many faults are told apart by route and reason.
	maxFaults = 100
)

// log is the logger of the engine.
func (c *core) log() *slog.Logger {
	if c.cfg.log == nil {
		return slog.Default() // as it is now, because a service may set it after the engine was made
	}
	return c.cfg.log
}

// faultLog logs each fault at once when it appears, and then once per logPause with the number of events that the line stands for. An
// event or the end of the engine writes the count, so nothing runs in between.
type faultLog struct {
	elsewhere bool // the telemetry logs them

	mu   sync.Mutex
	seen map[fault]*logged
}

// fault is what events have in common that share a line.
type fault struct {
	event               telemetry.EventType
	code, route, reason string
}

// logged is what the log has of a fault.
type logged struct {
	next    time.Time // of its next line
	missing int       // events since the line before
	last    telemetry.Event
	writing bool // the logger has a line, and has not returned
}

// take counts an event. It returns the number of events for a line to write now, or 0.
func (l *faultLog) take(ev *telemetry.Event, now time.Time) (*logged, int) {
	f := fault{ev.Type, ev.Code, ev.Route, steady(ev.Err)}
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.seen[f]
	if was == nil && len(l.seen) >= maxFaults {
		f.route, f.reason = "", ""
		was = l.seen[f]
	}
	if was == nil {
		if l.seen == nil {
			l.seen = make(map[fault]*logged)
		}
		was = &logged{}
		l.seen[f] = was
	}
	was.missing++
	was.last = *ev
	if was.writing || now.Before(was.next) {
		return nil, 0
	}
	n := was.missing
	was.missing, was.next, was.writing = 0, now.Add(logPause), true
	return was, n
}

// left takes the events that no line stands for yet.
func (l *faultLog) left() (left []logged) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, was := range l.seen {
		if was.missing > 0 {
			left = append(left, *was)
			was.missing = 0
		}
	}
	return left
}

// logFault logs an event if it tells of a fault of the server. The logger has a goroutine of its own, because one that blocks or panics
// must not hold a payment up. At most one is blocked for each fault.
func (c *core) logFault(ctx context.Context, ev *telemetry.Event) {
	defer func() { _ = recover() }() // of the error's own text
	level, ok := levelOf(ev)
	if !ok || c.faults.elsewhere {
		return
	}
	was, n := c.faults.take(ev, time.Now())
	if n == 0 {
		return
	}
	line := *ev
	waitBriefly(func() {
		defer func() {
			c.faults.mu.Lock()
			defer c.faults.mu.Unlock()
			was.writing = false
		}()
		c.write(ctx, level, &line, n)
	})
}

// logLeft logs what no line stands for yet, at the end of the engine.
func (c *core) logLeft() {
	left := c.faults.left()
	if len(left) == 0 {
		return
	}
	waitBriefly(func() {
		for _, was := range left {
			level, _ := levelOf(&was.last)
			c.write(context.Background(), level, &was.last, was.missing)
		}
	})
}

// waitBriefly runs fn, and returns before its end if fn takes long.
func waitBriefly(fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	timer := time.NewTimer(logWait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// write writes a line for n events, of which ev is the last one.
func (c *core) write(ctx context.Context, level slog.Level, ev *telemetry.Event, n int) {
	defer func() { _ = recover() }() // of the logger
	attrs := append(make([]slog.Attr, 0, 6), slog.String("route", ev.Route))
	if ev.Code != "" {
		attrs = append(attrs, slog.String("code", ev.Code))
	}
	if ev.KeyID != (driver.KeyID{}) {
		attrs = append(attrs, slog.String("op", ev.KeyID.OperationID()))
	}
	if ev.Err != nil {
		attrs = append(attrs, slog.String("err", ev.Err.Error()))
	}
	if hint := ev.Hint(); hint != "" {
		attrs = append(attrs, slog.String("hint", hint))
	}
	if n > 1 {
		attrs = append(attrs, slog.Int("repeated", n))
	}
	c.log().LogAttrs(ctx, level, "idempotency: "+ev.Type.String(), attrs...)
}

// levelOf reports whether an event tells of a fault of the server, and how bad it is.
func levelOf(ev *telemetry.Event) (slog.Level, bool) {
	switch ev.Type {
	case telemetry.EventRefused:
		switch Code(ev.Code) {
		case CodeInternal, CodeUnavailable, CodeStoreLost, CodeOwnershipLost:
			misused := errors.Is(ev.Err, driver.ErrSwallowed) // and logged as such
			return slog.LevelWarn, !misused && !errors.Is(ev.Err, errCallerGone)
		case CodeOutcomeUnknown: // without a key, after a rollback that does not undo what other systems have done
			return slog.LevelWarn, errors.Is(ev.Err, driver.ErrConflict) || errors.Is(ev.Err, driver.ErrRolledBack)
		}
	case telemetry.EventMisused, telemetry.EventUnreadable, telemetry.EventUnstored, telemetry.EventSettleAbandoned:
		return slog.LevelError, true
	case telemetry.EventUnknown, telemetry.EventFailedOpen, telemetry.EventTooLate:
		return slog.LevelWarn, true
	}
	return 0, false
}

// maxReason is how much of an error's text tells faults apart, in bytes.
const maxReason = 300

// steady is the text of an error without the words that have a digit, because those change from event to event.
func steady(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	words := strings.FieldsFunc(text[:min(len(text), maxReason)], func(r rune) bool { return r == ' ' || r == '/' || r == ':' })
	kept := words[:0]
	for _, w := range words {
		if !strings.ContainsAny(w, "0123456789") {
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, " ")
}
