package idem_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// ages are the durations of the reports about handlers that run for long.
func (b *bundle) ages(key string) (ages []time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ev := range b.events {
		if ev.Type == telemetry.EventLongRunning && ev.KeyID == idem.NewKeyID("m1", idem.Key(key)) {
			ages = append(ages, ev.Duration)
			if ev.Route != "POST /pay" || ev.Attempt.Number != 1 || ev.State != driver.StatePending {
				b.Errorf("event = %+v, want route, attempt and state", ev)
			}
		}
	}
	return ages
}

// A handler without a deadline that holds its key for long is reported, ever less
// often, and stands in Running.
func TestHandlerThatRunsForLongIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, parts{})
		wantRunning := func(n int, oldest time.Duration) {
			t.Helper()
			if got := b.engine.Running(); got != (telemetry.Running{Count: n, Oldest: oldest}) {
				t.Errorf("Running() = %+v, want %d and %v", got, n, oldest)
			}
		}
		wantRunning(0, 0)
		one := b.started("one", "{}", answers(201))
		time.Sleep(50 * time.Second)
		b.wantPayment("quick", "{}", 1, false)
		two := b.started("two", "{}", answers(201))
		time.Sleep(4*time.Minute + 5*time.Second)
		synctest.Wait()
		wantRunning(2, 4*time.Minute+55*time.Second)
		if got, want := b.ages("one"), []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute}; !slices.Equal(got, want) {
			t.Errorf("reports of one at %v, want %v", got, want)
		}
		if got, want := b.ages("two"), []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute}; !slices.Equal(got, want) {
			t.Errorf("reports of two at %v, want %v", got, want)
		}
		if _, err := one(); err != nil {
			t.Fatal(err)
		}
		wantRunning(1, 4*time.Minute+5*time.Second)
		if _, err := two(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		wantRunning(0, 0)
		b.wantEvents(telemetry.EventLongRunning, 6)
		// And again, after all was quiet.
		three := b.started("three", "{}", answers(201))
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		if got, want := b.ages("three"), []time.Duration{time.Minute}; !slices.Equal(got, want) {
			t.Errorf("reports of three at %v, want %v", got, want)
		}
		_, _ = three()
	})
}

// A handler that panics or outlives Close is out of the list when it is through.
func TestRunningForgetsHandlers(t *testing.T) {
	b := setup(t, parts{opts: []idem.Option{idem.WithLongRunning(time.Nanosecond)}})
	func() {
		defer func() { _ = recover() }()
		_, _ = b.doWith("k1", "{}", func(context.Context) (idem.Response, error) { panic("boom") })
	}()
	finish := b.started("k2", "{}", answers(201))
	b.eventually("the handler is reported", func() bool { return len(b.ages("k2")) > 0 })
	now, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.engine.Close(now); err == nil {
		t.Error("Close() = nil with a handler that runs, want an error")
	}
	_, _ = finish()
	if got := b.engine.Running(); got.Count != 0 {
		t.Errorf("Running() = %+v, want none", got)
	}
}

func TestLongRunningCanBeOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, parts{opts: []idem.Option{idem.WithLongRunning(0)}})
		finish := b.started("k1", "{}", answers(201))
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		b.wantEvents(telemetry.EventLongRunning, 0)
		_, _ = finish()
	})
}
