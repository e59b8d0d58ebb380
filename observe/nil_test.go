package observe_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
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

// An observer that logs has the next step of a fault, because the engine logs it no second time.
func TestLogHasTheNextStep(t *testing.T) {
	var log bytes.Buffer
	o := observe.New(observe.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	o.Event(t.Context(), telemetry.Event{Type: telemetry.EventRefused, Code: string(idem.CodeUnavailable)})
	o.Event(t.Context(), telemetry.Event{Type: telemetry.EventRefused, Code: string(idem.CodeInProgress), KeyID: idem.NewKeyID("", "k")})
	if !o.Logs() || observe.New().Logs() || strings.Count(log.String(), "hint=") != 1 || !strings.Contains(log.String(), "idemctl doctor") {
		t.Errorf("Logs() = %t, and without a logger %t, and the log has %q, want true, false and one hint", o.Logs(), observe.New().Logs(), log.String())
	}
}
