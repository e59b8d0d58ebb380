//go:build unix

package observe_test

import (
	"context"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/observe"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// BenchmarkCostOfMetrics measures an engine with metrics beside the same engine without, in
// turns within one run. It reports the difference of the medians in processor time per
// request, in µs.
func BenchmarkCostOfMetrics(b *testing.B) {
	for name, repeats := range map[string]bool{"fresh": false, "replay": true} {
		b.Run(name, func(b *testing.B) {
			measured := observe.New(observe.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))))
			var spent [2][]time.Duration // per request
			const batch = 1000           // requests between two looks at the clock
			n := 0
			for b.Loop() {
				for turn := range 2 {
					// A new engine and store each time, so that garbage collection costs both the same.
					i, opts := (n+turn)%2, []idem.Option(nil)
					if i == 1 {
						opts = append(opts, idem.WithTelemetry(unwatched{measured}))
					}
					engine := costEngine(b, opts...)
					costRequest(b, engine, "k")
					before := processorTime(b)
					for r := range batch {
						key := "k"
						if !repeats {
							key = strconv.Itoa(r)
						}
						costRequest(b, engine, key)
					}
					spent[i] = append(spent[i], (processorTime(b)-before)/batch)
				}
				n++
			}
			median := func(all []time.Duration) float64 {
				slices.Sort(all)
				return float64(all[len(all)/2].Nanoseconds()) / 1000
			}
			without := median(spent[0])
			b.ReportMetric(0, "ns/op") // of a batch, and of no interest
			b.ReportMetric(without, "µs/request-without")
			b.ReportMetric(median(spent[1])-without, "µs/request-for-metrics")
		})
	}
}

// unwatched leaves out the gauges, because the benchmark makes many engines.
type unwatched struct{ *observe.Observer }

func (unwatched) Watch(telemetry.Engine, driver.Store) {}

func costEngine(b *testing.B, opts ...idem.Option) *idem.Engine {
	b.Helper()
	engine, err := idem.New(memorylock.New(), memorystore.New(), opts...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = engine.Close(context.Background()) })
	return engine
}

var costPolicy = func() *idem.Policy {
	p, err := idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}.WithDefaults()
	if err != nil {
		panic(err)
	}
	return &p
}()

func costRequest(b *testing.B, engine *idem.Engine, key string) {
	_, err := engine.Do(context.Background(), idem.Operation{Transport: idem.TransportHTTP, Key: idem.Key(key), Policy: costPolicy,
		Fingerprint: func(v uint8) (driver.Fingerprint, error) {
			return driver.Fingerprint{Version: v, Sum: [32]byte{1}}, nil
		}},
		func(context.Context) (idem.Response, error) { return idem.Response{Status: 201}, nil })
	if err != nil {
		b.Fatal(err)
	}
}

// processorTime is what this process has used so far.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
