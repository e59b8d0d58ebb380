// Package telemetry sets OpenTelemetry up for the sample, as a service does that owns its
// process.
//
// Metrics are served as Prometheus text. Metrics and traces also go to an OTLP receiver if one
// of the standard variables names it: OTEL_EXPORTER_OTLP_ENDPOINT, or the same with TRACES or
// METRICS before ENDPOINT. The other OTEL_ variables of the exporters, of sampling and of the
// resource have their usual meaning, and OTEL_EXPORTER_OTLP_PROTOCOL is http/protobuf or grpc
// (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	prometheusexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/idemkeeper/idemkeeper/observe"
)

// Telemetry has the providers of the process. Make it with [New].
type Telemetry struct {
	Meters     *metric.MeterProvider
	Tracers    *trace.TracerProvider
	Propagator propagation.TextMapPropagator
	Observer   *observe.Observer // of the engine and the sweeper
	registry   *prometheus.Registry
}

// New returns the providers. Nothing is sent to a receiver before it is used, and a receiver
// that is away loses telemetry and no payment.
func New(ctx context.Context, log *slog.Logger) (*Telemetry, error) {
	t := &Telemetry{registry: prometheus.NewRegistry(),
		Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})}
	t.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "example-payments")), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	text, err := prometheusexporter.New(prometheusexporter.WithRegisterer(t.registry), prometheusexporter.WithoutScopeInfo(),
		prometheusexporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	meters := []metric.Option{metric.WithReader(text), metric.WithResource(about), metric.WithView(fewAttributes)}
	tracers := []trace.TracerProviderOption{trace.WithResource(about)}
	if named("METRICS") {
		exporter, err := metricExporter(ctx)
		if err != nil {
			return nil, fmt.Errorf("telemetry: %w", err)
		}
		meters = append(meters, metric.WithReader(metric.NewPeriodicReader(exporter)))
	}
	if named("TRACES") {
		exporter, err := traceExporter(ctx)
		if err != nil {
			return nil, fmt.Errorf("telemetry: %w", err)
		}
		tracers = append(tracers, trace.WithBatcher(exporter))
	} else {
		tracers = append(tracers, trace.WithSampler(trace.NeverSample()))
	}
	t.Meters, t.Tracers = metric.NewMeterProvider(meters...), trace.NewTracerProvider(tracers...)
	t.Observer = observe.New(observe.WithMeterProvider(t.Meters), observe.WithTracerProvider(t.Tracers), observe.WithLogger(log))
	return t, nil
}

// named reports whether the environment names a receiver for a signal, METRICS or TRACES.
func named(signal string) bool {
	return os.Getenv("OTEL_SDK_DISABLED") != "true" && os.Getenv("OTEL_"+signal+"_EXPORTER") != "none" &&
		(os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != "")
}

// overGRPC reports whether a signal goes to its receiver over gRPC.
func overGRPC(signal string) bool {
	protocol := os.Getenv("OTEL_EXPORTER_OTLP_" + signal + "_PROTOCOL")
	if protocol == "" {
		protocol = os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")
	}
	return protocol == "grpc"
}

func metricExporter(ctx context.Context) (metric.Exporter, error) {
	if overGRPC("METRICS") {
		return otlpmetricgrpc.New(ctx)
	}
	return otlpmetrichttp.New(ctx)
}

func traceExporter(ctx context.Context) (trace.SpanExporter, error) {
	if overGRPC("TRACES") {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}

// fewAttributes keeps what clients send, such as the name of the host, out of the metrics of
// HTTP and gRPC. It leaves out the sizes of bodies.
func fewAttributes(in metric.Instrument) (metric.Stream, bool) {
	kept := map[attribute.Key]bool{"http.request.method": true, "http.route": true, "http.response.status_code": true,
		"rpc.system.name": true, "rpc.method": true, "rpc.response.status_code": true, "error.type": true}
	out := metric.Stream{Name: in.Name, Description: in.Description, Unit: in.Unit}
	switch in.Name {
	case "http.server.request.duration", "rpc.server.call.duration":
		out.AttributeFilter = func(kv attribute.KeyValue) bool { return kept[kv.Key] }
		return out, true
	case "http.server.request.body.size", "http.server.response.body.size":
		out.Aggregation = metric.AggregationDrop{}
		return out, true
	}
	return out, false
}

// Handler serves the metrics in Prometheus's text format.
func (t *Telemetry) Handler() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{Registry: t.registry})
}

// Close sends what is left. It gives up when ctx ends.
func (t *Telemetry) Close(ctx context.Context) error {
	return errors.Join(t.Tracers.Shutdown(ctx), t.Meters.Shutdown(ctx))
}
