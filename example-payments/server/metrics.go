package server

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// Metrics is what /metrics shows. No label holds what a client made up. Make
// it with [NewMetrics].
type Metrics struct {
	registry *prometheus.Registry
	events   *prometheus.CounterVec
	handlers *prometheus.HistogramVec
	requests *prometheus.HistogramVec
	calls    *prometheus.HistogramVec
	swept    *prometheus.CounterVec
	passes   *prometheus.CounterVec
	leads    prometheus.Gauge
}

// buckets reach from a memory look-up to a slow card network.
var buckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// NewMetrics returns metrics in a registry of their own. Those about open
// records ask the store when they are read.
func NewMetrics(store idem.Store) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "idemkeeper_events_total",
			Help: "What happened to requests with a key; code is that of a refusal."}, []string{"type", "route", "code"}),
		handlers: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "idemkeeper_handler_seconds", Buckets: buckets,
			Help: "From the start of a handler until its outcome was stored, by the state it left."}, []string{"route", "state"}),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "payments_http_request_seconds", Buckets: buckets,
			Help: "HTTP requests."}, []string{"route", "status"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "payments_grpc_call_seconds", Buckets: buckets,
			Help: "gRPC calls."}, []string{"method", "code"}),
		swept: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "idemkeeper_swept_records_total",
			Help: "Open records that the sweeper of this instance looked at, by what came of it."}, []string{"result"}),
		passes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "idemkeeper_sweeper_passes_total",
			Help: "Walks over the open records by this instance; failed ones could not see or settle all."}, []string{"result"}),
		leads: prometheus.NewGauge(prometheus.GaugeOpts{Name: "idemkeeper_sweeper_leads",
			Help: "1 where this instance is the one that sweeps."}),
	}
	m.registry.MustRegister(m.events, m.handlers, m.requests, m.calls, m.swept, m.passes, m.leads, newOpenRecords(store),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// WatchRunning adds the handlers that run in an engine. It is called once.
func (m *Metrics) WatchRunning(e *idem.Engine) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "idemkeeper_running_executions",
			Help: "Handlers that run in this process, each holding its key."},
			func() float64 { return float64(e.Running().Count) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "idemkeeper_running_oldest_seconds",
			Help: "For how long the oldest of them has been running; 0 without any."},
			func() float64 { return e.Running().Oldest.Seconds() }))
}

// Observe is an [idem.Observer].
func (m *Metrics) Observe(_ context.Context, ev idem.Event) {
	m.events.WithLabelValues(ev.Type.String(), ev.Route, string(ev.Code)).Inc()
	if ev.Duration > 0 && ev.Type != idem.EventLongRunning {
		m.handlers.WithLabelValues(ev.Route, ev.State.String()).Observe(ev.Duration.Seconds())
	}
}

func (m *Metrics) request(route string, status int, d time.Duration) {
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Observe(d.Seconds())
}

// Call counts a gRPC call; the method is one that the server has.
func (m *Metrics) Call(method, code string, d time.Duration) {
	m.calls.WithLabelValues(method, code).Observe(d.Seconds())
}

// Swept counts a pass of the sweeper.
func (m *Metrics) Swept(p sweeper.Pass) {
	m.leads.Set(0)
	if p.Leader && !p.Yielded {
		m.leads.Set(1)
	}
	result := "done"
	if p.Err != nil {
		result = "failed"
	}
	m.passes.WithLabelValues(result).Inc()
	for result, n := range map[string]int{"deferred": p.Deferred, "held": p.Held, "applied": p.Applied,
		"released": p.Released, "unknown": p.Unknown, "queued": p.Queued, "unqueued": p.Unqueued, "failed": p.Failed,
		"newer-build": p.Newer, "corrupt": p.Corrupt} {
		m.swept.WithLabelValues(result).Add(float64(n))
	}
}

// Handler serves the metrics in Prometheus's text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}
