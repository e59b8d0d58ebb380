package observe_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/observe"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// Two requests with one key are measured: one is completed, one replayed. Without
// WithMeterProvider the provider is that of otel.SetMeterProvider.
func ExampleNew() {
	ctx, reader := context.Background(), metric.NewManualReader()
	o := observe.New(observe.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))))
	engine, err := idem.New(memorylock.New(), memorystore.New(), o.Engine())
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{Name: "pay", InDoubt: idem.LeaveUnknown()}
	for range 2 {
		_, err := engine.Do(ctx, idem.Operation{Scope: "merchant_1", Key: "order-1001", Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "12.50")},
			func(context.Context) (idem.Response, error) { return idem.Response{}, nil })
		if err != nil {
			panic(err)
		}
	}
	var metrics metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &metrics); err != nil {
		panic(err)
	}
	for _, m := range metrics.ScopeMetrics[0].Metrics {
		if durations, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "idemkeeper.request.duration" {
			requests := map[string]uint64{}
			for _, p := range durations.DataPoints {
				outcome, _ := p.Attributes.Value("idemkeeper.outcome")
				requests[outcome.AsString()] += p.Count
			}
			fmt.Println(requests)
		}
	}
	// Output: map[completed:1 replayed:1]
}

// A store that is away fails every request. The log gets one line and then one line a second
// with the number of the others, in place of a line for each.
func ExampleNewLimitHandler() {
	text := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	limited := observe.NewLimitHandler(text)
	defer limited.Flush() // at the end of the process
	log := slog.New(limited)
	for _, err := range []string{"connection 17 refused", "connection 18 refused", "connection 19 refused"} {
		log.Error("begin failed", "err", err)
	}
	// Output:
	// level=ERROR msg="begin failed" err="connection 17 refused"
	// level=ERROR msg="begin failed" err="connection 19 refused" repeated=2
}
