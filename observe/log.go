package observe

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// logEvent logs an event at a level for its weight.
func (o *Observer) logEvent(ctx context.Context, ev *telemetry.Event) {
	level := levelOf(ev)
	if o.log == nil || !o.log.Enabled(ctx, level) {
		return
	}
	attrs := append(make([]slog.Attr, 0, 10), slog.String("event", ev.Type.String()), slog.String("route", ev.Route))
	if ev.KeyID != (driver.KeyID{}) {
		attrs = append(attrs, slog.String("op", ev.KeyID.OperationID()))
	}
	if ev.Attempt.Number > 0 {
		attrs = append(attrs, slog.Uint64("attempt", uint64(ev.Attempt.Number)), slog.String("state", ev.State.String()))
	}
	if ev.Duration > 0 {
		attrs = append(attrs, slog.Duration("took", ev.Duration))
	}
	if ev.Code != "" {
		attrs = append(attrs, slog.String("code", ev.Code))
	}
	if ev.Err != nil {
		attrs = append(attrs, slog.Any("err", ev.Err))
	}
	if hint := ev.Hint(); hint != "" && level >= slog.LevelWarn {
		attrs = append(attrs, slog.String("hint", hint))
	}
	if c := trace.SpanContextFromContext(ctx); c.IsSampled() {
		attrs = append(attrs, slog.String("trace_id", c.TraceID().String()))
	}
	o.log.LogAttrs(ctx, level, "idempotency", attrs...)
}

func levelOf(ev *telemetry.Event) slog.Level {
	switch ev.Type {
	case telemetry.EventUnknown, telemetry.EventSuperseded, telemetry.EventOwnershipLost, telemetry.EventBeginAborted, telemetry.EventSettleDelayed,
		telemetry.EventLongRunning, telemetry.EventFailedOpen, telemetry.EventReleaseFailed, telemetry.EventRepaired, telemetry.EventTooLate:
		return slog.LevelWarn
	case telemetry.EventSettleAbandoned, telemetry.EventUnreadable, telemetry.EventUnstored, telemetry.EventMisused:
		return slog.LevelError
	case telemetry.EventRefused:
		if ours(idem.Code(ev.Code)) {
			return slog.LevelWarn
		}
	}
	if ev.KeyID == (driver.KeyID{}) { // no story to tell
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// logPass logs a pass of the sweeper. It warns of an error, and when the number of unreadable
// records changes.
func (o *Observer) logPass(ctx context.Context, p *sweeper.Pass) {
	if o.log == nil {
		return
	}
	level := slog.LevelDebug
	if p.Settled()+p.Queued > 0 {
		level = slog.LevelInfo
	}
	// A failed chore or election has no duration and no counts.
	unreadable := int64(p.Newer)<<32 | int64(p.Corrupt)
	if p.Err != nil || p.Duration > 0 && o.unreadable.Swap(unreadable) != unreadable {
		level = slog.LevelWarn
	}
	o.log.LogAttrs(ctx, level, "sweep", slog.Bool("leader", p.Leader), slog.Duration("took", p.Duration),
		slog.Int("open", p.Looked), slog.Int("held", p.Held), slog.Int("applied", p.Applied), slog.Int("released", p.Released),
		slog.Int("unknown", p.Unknown), slog.Int("queued", p.Queued), slog.Int("unqueued", p.Unqueued), slog.Int("failed", p.Failed),
		slog.Int("newer", p.Newer), slog.Int("corrupt", p.Corrupt), slog.Any("err", p.Err))
}
