package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// observer counts every event and logs it, at a level for its weight.
func observer(m *server.Metrics, log *slog.Logger) idem.Observer {
	return func(ctx context.Context, ev idem.Event) {
		m.Observe(ctx, ev)
		level := levelOf(ev)
		if !log.Enabled(ctx, level) {
			return
		}
		attrs := []slog.Attr{slog.String("event", ev.Type.String()), slog.String("route", ev.Route)}
		if ev.KeyID != (idem.KeyID{}) {
			attrs = append(attrs, slog.String("op", ev.KeyID.OperationID()))
		}
		if ev.Attempt.Number > 0 {
			attrs = append(attrs, slog.Uint64("attempt", uint64(ev.Attempt.Number)), slog.String("state", ev.State.String()))
		}
		if ev.Code != "" {
			attrs = append(attrs, slog.String("code", string(ev.Code)))
		}
		if ev.Err != nil {
			attrs = append(attrs, slog.Any("err", ev.Err))
		}
		log.LogAttrs(ctx, level, "idempotency", attrs...)
	}
}

func levelOf(ev idem.Event) slog.Level {
	switch ev.Type {
	case idem.EventInterrupted, idem.EventResolved:
		return slog.LevelInfo
	case idem.EventUnknown, idem.EventSuperseded, idem.EventOwnershipLost, idem.EventBeginAborted,
		idem.EventSettleDelayed, idem.EventLongRunning, idem.EventFailedOpen, idem.EventReleaseFailed:
		return slog.LevelWarn
	case idem.EventSettleAbandoned, idem.EventUnreadable:
		return slog.LevelError
	case idem.EventRefused:
		switch ev.Code { // not the client's fault
		case idem.CodeUnavailable, idem.CodeStoreLost, idem.CodeOwnershipLost, idem.CodeInternal:
			return slog.LevelWarn
		}
	}
	return slog.LevelDebug
}

// logPass logs a pass of the sweeper. It warns of an error, and when the number of
// unreadable records changes.
func (a *App) logPass(ctx context.Context, p *sweeper.Pass) {
	level := slog.LevelDebug
	if p.Settled()+p.Queued > 0 {
		level = slog.LevelInfo
	}
	// A failed chore or election has no duration and no counts.
	unreadable := int64(p.Newer)<<32 | int64(p.Corrupt)
	if p.Err != nil || p.Duration > 0 && a.unreadable.Swap(unreadable) != unreadable {
		level = slog.LevelWarn
	}
	a.log.LogAttrs(ctx, level, "sweep", slog.Bool("leader", p.Leader), slog.Duration("took", p.Duration),
		slog.Int("open", p.Looked), slog.Int("held", p.Held), slog.Int("applied", p.Applied), slog.Int("released", p.Released),
		slog.Int("unknown", p.Unknown), slog.Int("queued", p.Queued), slog.Int("unqueued", p.Unqueued), slog.Int("failed", p.Failed),
		slog.Int("newer", p.Newer), slog.Int("corrupt", p.Corrupt), slog.Any("err", p.Err))
}

// heldBack keeps log lines until it is released. So a start that fails writes one
// line, the error. It is safe for concurrent use.
type heldBack struct {
	to io.Writer

	mu       sync.Mutex
	kept     bytes.Buffer
	released bool
}

// Write implements [io.Writer].
func (h *heldBack) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return h.to.Write(p)
	}
	return h.kept.Write(p)
}

// release writes the kept lines, and passes on all later ones.
func (h *heldBack) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.released = true
	_, _ = h.kept.WriteTo(h.to)
}

// debugLog logs the messages of Redis's client library at debug level.
type debugLog struct{ *slog.Logger }

// Printf implements the library's logger.
func (l debugLog) Printf(ctx context.Context, format string, args ...any) {
	l.DebugContext(ctx, fmt.Sprintf(format, args...))
}
