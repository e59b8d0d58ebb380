package main

import (
	"context"
	"log/slog"

	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/idem"
)

// observer counts every event and logs those that somebody may want to look
// into.
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
		idem.EventSaveDelayed, idem.EventLongRunning, idem.EventFailedOpen, idem.EventReleaseFailed:
		return slog.LevelWarn
	case idem.EventSaveAbandoned, idem.EventUnreadable:
		return slog.LevelError
	case idem.EventRefused:
		switch ev.Code { // those that are no fault of the client
		case idem.CodeUnavailable, idem.CodeStoreLost, idem.CodeOwnershipLost, idem.CodeInternal:
			return slog.LevelWarn
		}
	}
	return slog.LevelDebug
}
