package idemprom_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	prometheusexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemprom "github.com/idemkeeper/idemkeeper/observe/prometheus"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A service that has an exporter of OpenTelemetry in the same registry keeps its metrics.
func TestBesideAnExporterOfTheService(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	exporter, err := prometheusexporter.New(prometheusexporter.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	orders, err := metric.NewMeterProvider(metric.WithReader(exporter)).Meter("shop").Int64Counter("orders")
	if err != nil {
		t.Fatal(err)
	}
	orders.Add(t.Context(), 1)
	engine, err := idem.New(memorylock.New(), memorystore.New(), idemprom.MustNew(registry).Engine())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, name := range []string{"orders_total", "idemkeeper_running_executions"} {
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), name) {
			t.Errorf("/metrics = %d without %s:\n%s", w.Code, name, w.Body)
		}
	}
}

func TestSecondObserverOfARegistryIsRefused(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	idemprom.MustNew(registry)
	idemprom.MustNew(prometheus.NewRegistry())
	defer func() {
		if recover() == nil {
			t.Error("a second MustNew() for a registry did not panic")
		}
	}()
	idemprom.MustNew(registry)
}
