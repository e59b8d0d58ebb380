package server

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// Metrics are shown by /metrics. No label holds a client's text. Make them with
// [NewMetrics].
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

// NewMetrics returns metrics in a registry of their own. The metrics about open
// records ask the store whenever they are read.
func NewMetrics(store idem.Store) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "idemkeeper_events_total",
			Help: "Events of requests with a key. A refusal has a code."}, []string{"type", "route", "code"}),
		handlers: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "idemkeeper_handler_seconds", Buckets: buckets,
			Help: "Time from the start of a handler until its outcome was stored, by the state of the record."}, []string{"route", "state"}),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "payments_http_request_seconds", Buckets: buckets,
			Help: "HTTP requests."}, []string{"route", "status"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "payments_grpc_call_seconds", Buckets: buckets,
			Help: "gRPC calls."}, []string{"method", "code"}),
		swept: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "idemkeeper_swept_records_total",
			Help: "Open records that the sweeper of this instance looked at, by result."}, []string{"result"}),
		passes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "idemkeeper_sweeper_passes_total",
			Help: "Walks of this instance over the open records. A failed walk could not read or settle all of them."}, []string{"result"}),
		leads: prometheus.NewGauge(prometheus.GaugeOpts{Name: "idemkeeper_sweeper_leads",
			Help: "1 if this instance is the one that sweeps."}),
	}
	m.registry.MustRegister(m.events, m.handlers, m.requests, m.calls, m.swept, m.passes, m.leads, newOpenRecords(store),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// WatchRunning adds gauges of the running handlers of an engine. It is called once.
func (m *Metrics) WatchRunning(e *idem.Engine) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "idemkeeper_running_executions",
			Help: "Handlers that run in this process. Each holds its key."},
			func() float64 { return float64(e.Running().Count) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "idemkeeper_running_oldest_seconds",
			Help: "How long the oldest of them has been running, 0 if there are no handlers."},
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

// Call counts a gRPC call. The method must be one of the server.
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

const (
	openTimeout = time.Second
	openLimit   = 1_000 // stop counting here, to keep reading metrics cheap
)

// openRecords counts the records with an open attempt, and the records that this
// build cannot read. Every instance of the store shows the same numbers. While the
// store does not answer, the metrics are missing.
type openRecords struct {
	store                     idem.Store
	count, oldest, unreadable *prometheus.Desc
}

func newOpenRecords(store idem.Store) *openRecords {
	return &openRecords{
		store: store,
		count: prometheus.NewDesc("idemkeeper_open_records",
			"Records without a settled outcome, at most 1000 of a state, over all instances of the store.", []string{"state"}, nil),
		oldest: prometheus.NewDesc("idemkeeper_open_oldest_seconds",
			"Age of the oldest of them, by this instance's clock.", []string{"state"}, nil),
		unreadable: prometheus.NewDesc("idemkeeper_unreadable_records",
			"Open records that this instance cannot read, because a newer build wrote them or because they are corrupt.", []string{"reason"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (o *openRecords) Describe(ch chan<- *prometheus.Desc) {
	ch <- o.count
	ch <- o.oldest
	ch <- o.unreadable
}

// Collect implements [prometheus.Collector].
func (o *openRecords) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	newer, corrupt := 0, 0
	for _, state := range []idem.State{idem.StatePending, idem.StateUnknown} {
		count, oldest := 0, time.Time{}
		newer, corrupt = 0, 0 // both listings show the same ones
		for q := (idem.OpenQuery{State: state, Limit: openLimit}); ; {
			page, err := o.store.ListOpen(ctx, q)
			if err != nil {
				return
			}
			for _, r := range page.Records {
				switch {
				case errors.Is(r.Err, idem.ErrNewerRecord):
					newer++
				case r.Err != nil:
					corrupt++
				default:
					if count++; count == 1 {
						oldest = r.Record.Started
					}
				}
			}
			if q.After = page.Next; q.After == nil || count+newer+corrupt >= openLimit {
				break
			}
		}
		age := 0.0
		if count > 0 {
			age = max(0, time.Since(oldest).Seconds())
		}
		ch <- prometheus.MustNewConstMetric(o.count, prometheus.GaugeValue, float64(min(count, openLimit)), state.String())
		ch <- prometheus.MustNewConstMetric(o.oldest, prometheus.GaugeValue, age, state.String())
	}
	ch <- prometheus.MustNewConstMetric(o.unreadable, prometheus.GaugeValue, float64(newer), "newer-build")
	ch <- prometheus.MustNewConstMetric(o.unreadable, prometheus.GaugeValue, float64(corrupt), "corrupt")
}
