package idemprom_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemprom "github.com/idemkeeper/idemkeeper/observe/prometheus"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// Two requests with one key are in the text that Prometheus reads.
func ExampleMustNew() {
	engine, err := idem.New(memorylock.New(), memorystore.New(), idemprom.MustNew(nil).Engine())
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{Name: "pay", InDoubt: idem.LeaveUnknown()}
	for range 2 {
		_, err := engine.Do(context.Background(), idem.Operation{
			Scope: "merchant_1", Key: "order-1001", Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "12.50"),
		}, func(context.Context) (idem.Response, error) { return idem.Response{}, nil })
		if err != nil {
			panic(err)
		}
	}

	w := httptest.NewRecorder()
	idemprom.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "idemkeeper_request_duration_seconds_count") {
			fmt.Print(line)
		}
	}
	// Output:
	// idemkeeper_request_duration_seconds_count{idemkeeper_outcome="completed",idemkeeper_route="pay"} 1
	// idemkeeper_request_duration_seconds_count{idemkeeper_outcome="replayed",idemkeeper_route="pay"} 1
}

// A service with a registry of its own gives it to the observer, and serves it.
func ExampleMustNew_registry() {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector()) // what the service has there
	engine, err := idem.New(memorylock.New(), memorystore.New(), idemprom.MustNew(registry).Engine())
	if err != nil {
		panic(err)
	}
	defer engine.Close(context.Background())

	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "idemkeeper_running_executions") {
			fmt.Print(line)
		}
	}
	// Output: idemkeeper_running_executions 0
}
