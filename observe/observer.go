package observe

import (
	"context"
	"log/slog"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// scope names this package in metrics and traces.
const scope = "github.com/idemkeeper/idemkeeper/observe"

// Observer measures and logs the engines and sweepers of a process. It is safe for concurrent
// use. Make it with [New].
type Observer struct {
	tracer trace.Tracer
	meters *meters
	log    *slog.Logger // nil if nothing is logged

	unreadable atomic.Int64 // newer and corrupt records of the last pass, see logPass
}

var _ telemetry.Logger = (*Observer)(nil)

// Option configures an [Observer]. A nil Option is ignored.
type Option func(*config)

type config struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
	log     *slog.Logger
}

// WithTracerProvider sends traces to p. By default, and with nil, they go to the global provider.
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.tracers = p } }

// WithMeterProvider sends metrics to p. By default, and with nil, they go to the global provider.
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meters = p } }

// WithLogger logs events and passes of the sweeper to l, in place of the faults that an engine logs
// by itself ([idem.WithLogger]). By default the observer logs nothing.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.log = l } }

// New returns an observer. A metric that the provider refuses is reported to the error handler
// of OpenTelemetry and left out.
func New(opts ...Option) *Observer {
	var c config
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	if c.tracers == nil {
		c.tracers = otel.GetTracerProvider()
	}
	if c.meters == nil {
		c.meters = otel.GetMeterProvider()
	}
	return &Observer{tracer: c.tracers.Tracer(scope), meters: newMeters(c.meters.Meter(scope)), log: c.log}
}

// Logs implements [telemetry.Logger].
func (o *Observer) Logs() bool { return o.log != nil }

// Engine is the option for [idem.New] and [idem.NewJoined].
func (o *Observer) Engine() idem.Option { return idem.WithTelemetry(o) }

// Sweeper is the option for [sweeper.New].
func (o *Observer) Sweeper() sweeper.Option {
	return sweeper.WithObserver(func(ctx context.Context, p sweeper.Pass) {
		o.meters.swept(ctx, &p)
		o.logPass(ctx, &p)
	})
}

// Watch implements [telemetry.Recorder].
func (o *Observer) Watch(engine telemetry.Engine, store driver.Store) { o.meters.watch(engine, store) }

// StartStep implements [telemetry.Recorder].
func (o *Observer) StartStep(ctx context.Context, start telemetry.StepStart) (context.Context, any) {
	inner, span := startSpan(ctx, o.tracer, start)
	if span == nil && !measured(start.Step) {
		return nil, nil
	}
	return inner, span
}

// EndStep implements [telemetry.Recorder].
func (o *Observer) EndStep(ctx context.Context, span any, end telemetry.StepEnd) {
	if span == nil {
		ctx = context.Background() // without exemplars, the metrics need not look for a span
	}
	o.meters.ended(ctx, &end)
	endSpan(span, &end)
}

// Span implements [telemetry.Recorder].
func (o *Observer) Span(span any) driver.Span { return nameOf(span) }

// Event implements [telemetry.Recorder].
func (o *Observer) Event(ctx context.Context, ev telemetry.Event) {
	o.meters.event(ctx, &ev)
	spanEvent(ctx, &ev)
	o.logEvent(ctx, &ev)
}
