package observe_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/observe"
)

// What is nil has the default of the process.
func TestNilStandsForTheDefaults(t *testing.T) {
	o := observe.New(nil, observe.WithTracerProvider(nil), observe.WithMeterProvider(nil), observe.WithLogger(nil))
	o.Event(context.Background(), telemetry.Event{Type: telemetry.EventUnknown})
	if slog.New(observe.NewLimitHandler(nil)).Enabled(t.Context(), slog.LevelDebug) != slog.Default().Enabled(t.Context(), slog.LevelDebug) {
		t.Error("NewLimitHandler(nil) is not in front of the default handler")
	}
}
