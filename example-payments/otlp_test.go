package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	metricsv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spanv1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// receiver is an OTLP receiver.
type receiver struct {
	tracev1.UnimplementedTraceServiceServer

	mu       sync.Mutex
	services map[string]bool
	spans    []*spanv1.Span
	metrics  map[string]bool
}

func (r *receiver) Export(_ context.Context, req *tracev1.ExportTraceServiceRequest) (*tracev1.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range req.GetResourceSpans() {
		for _, a := range of.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				r.services[a.GetValue().GetStringValue()] = true
			}
		}
		for _, scope := range of.GetScopeSpans() {
			r.spans = append(r.spans, scope.GetSpans()...)
		}
	}
	return &tracev1.ExportTraceServiceResponse{}, nil
}

// metricReceiver is the receiver's service for metrics, whose method has the same name.
type metricReceiver struct {
	metricsv1.UnimplementedMetricsServiceServer
	*receiver
}

func (r metricReceiver) Export(_ context.Context, req *metricsv1.ExportMetricsServiceRequest) (*metricsv1.ExportMetricsServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range req.GetResourceMetrics() {
		for _, scope := range of.GetScopeMetrics() {
			for _, m := range scope.GetMetrics() {
				r.metrics[m.GetName()] = true
			}
		}
	}
	return &metricsv1.ExportMetricsServiceResponse{}, nil
}

// span returns the last span of a name, or nil.
func (r *receiver) span(name string) (last *spanv1.Span) {
	for _, s := range r.spans {
		if s.GetName() == name && (last == nil || s.GetStartTimeUnixNano() > last.GetStartTimeUnixNano()) {
			last = s
		}
	}
	return last
}

// overHTTP serves the receiver over HTTP, and returns its URL.
func (r *receiver) overHTTP(t *testing.T) string {
	accept := func(into proto.Message, export func() error) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			body, err := io.ReadAll(req.Body)
			if err == nil {
				err = proto.Unmarshal(body, into)
			}
			if err == nil {
				err = export()
			}
			if err != nil || req.Header.Get("Content-Type") != "application/x-protobuf" {
				t.Errorf("%s %s: %v", req.Header.Get("Content-Type"), req.URL.Path, err)
			}
			w.Header().Set("Content-Type", "application/x-protobuf")
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, req *http.Request) {
		var m tracev1.ExportTraceServiceRequest
		accept(&m, func() error { _, err := r.Export(req.Context(), &m); return err })(w, req)
	})
	mux.HandleFunc("POST /v1/metrics", func(w http.ResponseWriter, req *http.Request) {
		var m metricsv1.ExportMetricsServiceRequest
		accept(&m, func() error { _, err := metricReceiver{receiver: r}.Export(req.Context(), &m); return err })(w, req)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// overGRPC serves the receiver over gRPC, and returns its URL.
func (r *receiver) overGRPC(t *testing.T) string {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	tracev1.RegisterTraceServiceServer(server, r)
	metricsv1.RegisterMetricsServiceServer(server, metricReceiver{receiver: r})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return "http://" + l.Addr().String()
}

// Metrics and traces go to the receiver that the standard variables name, over either protocol, and
// the last of them before the process ends.
func TestTelemetryGoesToAnOTLPReceiver(t *testing.T) {
	t.Parallel()
	for protocol, serve := range map[string]func(*receiver, *testing.T) string{"http/protobuf": (*receiver).overHTTP, "grpc": (*receiver).overGRPC} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			r := &receiver{services: map[string]bool{}, metrics: map[string]bool{}}
			p := launchWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + serve(r, t), "OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol, "OTEL_SERVICE_NAME=shop"}).ready()
			for range 2 {
				if status, body := p.payUntilSettled("k"); status != 201 {
					t.Fatalf("payment: %d %s, want 201", status, body)
				}
			}
			p.stops()
			r.mu.Lock()
			defer r.mu.Unlock()
			if !r.services["shop"] || len(r.services) != 1 {
				t.Errorf("spans are of the services %v, want shop", r.services)
			}
			for _, name := range []string{"idemkeeper.request.duration", "idemkeeper.step.duration", "idemkeeper.open_records", "http.server.request.duration"} {
				if !r.metrics[name] {
					t.Errorf("there is no metric %s among %v", name, r.metrics)
				}
			}
			execution, replay, outer := r.span("idemkeeper.handler"), r.span("idemkeeper.request"), r.span("POST /v1/payments")
			if execution == nil || replay == nil || outer == nil {
				t.Fatalf("spans of a payment are missing among %v", r.spans)
			}
			if string(replay.GetParentSpanId()) != string(outer.GetSpanId()) {
				t.Errorf("the span of the middleware is not within that of the HTTP server")
			}
			if links := replay.GetLinks(); len(links) != 1 || string(links[0].GetSpanId()) != string(execution.GetSpanId()) {
				t.Errorf("the replay has the links %v, want the execution %x", links, execution.GetSpanId())
			}
		})
	}
}

// A receiver that is away costs telemetry, and no payment and no orderly end.
func TestOTLPReceiverThatIsAway(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(http.NotFoundHandler())
	url := gone.URL
	gone.Close()
	p := launchWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + url}).ready()
	if status, body := p.payUntilSettled("k"); status != 201 {
		t.Errorf("payment: %d %s, want 201", status, body)
	}
	p.stops()
}
