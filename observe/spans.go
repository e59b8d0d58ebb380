package observe

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// Attributes of spans and metrics. The ones of metrics have few values.
const (
	keyRoute     = attribute.Key("idemkeeper.route")
	keyStep      = attribute.Key("idemkeeper.step")
	keyOutcome   = attribute.Key("idemkeeper.outcome")
	keyEvent     = attribute.Key("idemkeeper.event")
	keyState     = attribute.Key("idemkeeper.state")
	keyAge       = attribute.Key("idemkeeper.age")
	keyReason    = attribute.Key("idemkeeper.reason")
	keyResult    = attribute.Key("idemkeeper.result")
	keyErrorType = attribute.Key("error.type")           // semantic conventions, "Recording errors"
	keyOperation = attribute.Key("idemkeeper.operation") // of spans only
	keyAttempt   = attribute.Key("idemkeeper.attempt")   // of spans only
)

// startSpan starts the span of a request, or of a step in a request that is recorded. The
// span is nil if it is not recorded.
func startSpan(ctx context.Context, tracer trace.Tracer, start telemetry.StepStart) (context.Context, any) {
	if start.Step != telemetry.StepRequest && start.Request == nil {
		return ctx, nil
	}
	inner, span := tracer.Start(ctx, spanNames[start.Step])
	if !span.IsRecording() {
		return ctx, nil
	}
	span.SetAttributes(keyRoute.String(start.Route))
	return inner, span
}

// spanNames are the names of the spans of steps.
var spanNames = func() (names [telemetry.StepResolve + 1]string) {
	for s := range names {
		names[s] = "idemkeeper." + telemetry.Step(s).String()
	}
	return names
}()

// endSpan ends a span from startSpan.
func endSpan(started any, end *telemetry.StepEnd) {
	span, ok := started.(trace.Span)
	if !ok {
		return
	}
	defer span.End()
	attrs := make([]attribute.KeyValue, 0, 4)
	if end.KeyID != (driver.KeyID{}) {
		attrs = append(attrs, keyOperation.String(end.KeyID.OperationID()))
	}
	if end.Attempt > 0 {
		attrs = append(attrs, keyAttempt.Int64(int64(end.Attempt)))
	}
	if end.Step == telemetry.StepRequest {
		attrs = append(attrs, keyOutcome.String(end.Outcome.String()))
		if !end.Origin.IsZero() {
			span.AddLink(trace.Link{SpanContext: trace.NewSpanContext(trace.SpanContextConfig{
				TraceID: end.Origin.TraceID, SpanID: end.Origin.SpanID, TraceFlags: trace.FlagsSampled, Remote: true})})
		}
	}
	if kind := errorType(end); kind != "" {
		attrs = append(attrs, keyErrorType.String(kind))
		if failed(end) {
			span.SetStatus(codes.Error, textOf(end.Err, kind))
		}
	}
	span.SetAttributes(attrs...)
}

// nameOf names a span from startSpan, if it is sampled. Others reach no one who could follow a
// link.
func nameOf(started any) driver.Span {
	if span, ok := started.(trace.Span); ok {
		if c := span.SpanContext(); c.IsSampled() {
			return driver.Span{TraceID: c.TraceID(), SpanID: c.SpanID()}
		}
	}
	return driver.Span{}
}

// spanEvent adds an event to the span in which it happens. Refusals and replays are the
// outcome of the span already.
func spanEvent(ctx context.Context, ev *telemetry.Event) {
	span := trace.SpanFromContext(ctx)
	if ev.Type == telemetry.EventRefused || ev.Type == telemetry.EventReplayed || !span.IsRecording() {
		return
	}
	attrs := make([]attribute.KeyValue, 0, 2)
	if ev.Attempt.Number > 0 {
		attrs = append(attrs, keyAttempt.Int64(int64(ev.Attempt.Number)))
	}
	if ev.Err != nil {
		attrs = append(attrs, attribute.String("exception.message", ev.Err.Error()))
	}
	span.AddEvent("idemkeeper."+ev.Type.String(), trace.WithAttributes(attrs...))
}

// other is the error.type of an error without a class of its own, as the conventions ask.
const other = "_OTHER"

// errorTypes are the classes of errors, in the order in which they are looked for.
var errorTypes = []struct {
	err  error
	name string
}{
	{driver.ErrLocked, "locked"},
	{driver.ErrLeaseLost, string(idem.CodeOwnershipLost)},
	{driver.ErrStoreLost, string(idem.CodeStoreLost)},
	{driver.ErrNewerRecord, "newer-record"},
	{driver.ErrCorruptRecord, "corrupt-record"},
	{driver.ErrStaleFence, "stale-fence"},
	{context.DeadlineExceeded, "timeout"},
	{context.Canceled, "canceled"},
	{driver.ErrUnavailable, string(idem.CodeUnavailable)},
}

// errorType classifies what ended a step, in few values. It is "" without an error.
func errorType(end *telemetry.StepEnd) string {
	switch {
	case end.Code != "":
		return end.Code
	case end.Err == nil:
		return ""
	}
	if refusal, ok := errors.AsType[*idem.Refusal](end.Err); ok {
		return string(refusal.Code)
	}
	for _, t := range errorTypes {
		if errors.Is(end.Err, t.err) {
			return t.name
		}
	}
	return other
}

// failed reports whether a step failed in a way that an operator cares about. A duplicate that
// is refused, or that finds the lock taken, is a normal answer.
func failed(end *telemetry.StepEnd) bool {
	code := end.Code
	if refusal, ok := errors.AsType[*idem.Refusal](end.Err); ok && code == "" {
		code = string(refusal.Code)
	}
	if code != "" {
		return ours(idem.Code(code))
	}
	return end.Step != telemetry.StepWait && !errors.Is(end.Err, driver.ErrLocked)
}

// ours reports whether a refusal comes from a fault of the service, not from its client.
func ours(code idem.Code) bool {
	switch code {
	case idem.CodeUnavailable, idem.CodeStoreLost, idem.CodeOwnershipLost, idem.CodeInternal:
		return true
	}
	return false
}

func textOf(err error, kind string) string {
	if err == nil {
		return kind
	}
	return err.Error()
}
