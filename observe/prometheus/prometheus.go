// Package idemprom exports the metrics of package observe to Prometheus, for a service that has no
// exporter of OpenTelemetry:
//
//	engine, err := idem.New(locker, store, idemprom.MustNew(nil).Engine())
//	mux.Handle("/metrics", idemprom.Handler())
//
// The names are those of deploy/alerts.yaml and the dashboard. A service that serves the default
// registry already needs no second handler. A service that exports its metrics with OpenTelemetry
// uses observe.New instead.
package idemprom

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/otlptranslator"
	prometheusexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/idemkeeper/idemkeeper/observe"
)

// New returns an observer whose metrics are in a registry, beside those that the service has there. Nil
// stands for [prometheus.DefaultRegisterer]. Call it once for a registry, and give its Engine option to
// every engine. A test that makes its service several times in one process gives each of them a registry
// of its own. Traces and logs are those of [observe.New]. New returns an error if the registry refuses
// the metrics. A second call is refused too, because metrics that come twice would make every scrape
// fail.
func New(registry prometheus.Registerer, opts ...observe.Option) (*observe.Observer, error) {
	if registry == nil {
		registry = prometheus.DefaultRegisterer
	}
	if err := registry.Register(once{}); err != nil {
		return nil, fmt.Errorf("observe/prometheus: %w", err)
	}
	exporter, err := prometheusexporter.New(prometheusexporter.WithRegisterer(registry), prometheusexporter.WithoutScopeInfo(),
		prometheusexporter.WithoutTargetInfo(), // an exporter of the service may have it already
		prometheusexporter.WithTranslationStrategy(otlptranslator.UnderscoreEscapingWithSuffixes))
	if err != nil {
		return nil, fmt.Errorf("observe/prometheus: %w", err)
	}
	meters := metric.NewMeterProvider(metric.WithReader(exporter))
	return observe.New(append([]observe.Option{observe.WithMeterProvider(meters)}, opts...)...), nil
}

// MustNew is [New] for known-good wiring. Like [prometheus.MustRegister] it panics where New returns
// an error.
func MustNew(registry prometheus.Registerer, opts ...observe.Option) *observe.Observer {
	o, err := New(registry, opts...)
	if err != nil {
		panic(err)
	}
	return o
}

// Handler serves all metrics in [prometheus.DefaultGatherer], also those of the service itself, as
// [promhttp.Handler] does. Everybody who reaches it reads them. A service with a registry of its own
// serves that with [promhttp.HandlerFor].
func Handler() http.Handler { return promhttp.Handler() }

// once occupies a name in a registry. The exporter does not describe its metrics, so the registry
// would notice a second one only when it is read.
type once struct{}

var onceDesc = prometheus.NewDesc("idemkeeper_observer", "idemprom.New was called for this registry. It may be called once.", nil, nil)

func (once) Describe(to chan<- *prometheus.Desc) { to <- onceDesc }

func (once) Collect(chan<- prometheus.Metric) {}
