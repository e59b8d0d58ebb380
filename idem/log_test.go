package idem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

// lines is a log without times.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// take returns the lines since the last call.
func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.buf.Reset()
	return strings.Split(strings.TrimSuffix(l.buf.String(), "\n"), "\n")
}

// want wants one line with all of these words.
func (l *lines) want(t *testing.T, words ...string) {
	t.Helper()
	got := l.take()
	for _, w := range words {
		if len(got) != 1 || !strings.Contains(got[0], w) {
			t.Errorf("the log has %q, want one line with %q", got, w)
		}
	}
}

func (l *lines) wantNothing(t *testing.T) {
	t.Helper()
	if got := l.take(); len(got) != 1 || got[0] != "" {
		t.Errorf("the log has %q, want nothing", got)
	}
}

// A fault is logged at once, then once a minute with a count, and the last count when the engine closes.
func TestFaultsAreLoggedOnceAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(lines)
		b := setup(t, parts{opts: []idem.Option{idem.WithLogger(log.logger())}})
		b.wantPayment("k1", "secret body", 1, false)
		b.wantPayment("k1", "secret body", 1, true)
		b.wantRefusal("k1", "another body", idem.CodeKeyReused)
		log.wantNothing(t)
		b.faults.FailBefore("Get", idemtest.Every, fmt.Errorf("%w: dial tcp 10.0.0.7:6379", driver.ErrUnavailable))
		refused := func(n int) {
			for range n {
				b.wantRefusal("k2", "secret body", idem.CodeUnavailable)
			}
		}
		refused(1)
		log.want(t, "level=WARN", `msg="idempotency: refused"`, `route="POST /pay"`, "code=unavailable", "dial tcp 10.0.0.7:6379", "idemctl doctor")
		refused(37)
		log.wantNothing(t)
		time.Sleep(time.Minute)
		refused(1)
		log.want(t, "repeated=38")
		refused(2)
		b.engine.ReportRefused(b.Context(), "POST /refunds", idem.NewRefusal(idem.CodeInternal, errors.New("no scope")))
		log.want(t, `route="POST /refunds"`, "code=internal", `err="no scope"`)
		if err := b.engine.Close(b.Context()); err != nil {
			t.Errorf("Close() = %v", err)
		}
		log.want(t, "repeated=2", `route="POST /pay"`)
		if err := b.engine.Close(b.Context()); err != nil {
			t.Errorf("Close() = %v", err)
		}
		log.wantNothing(t)
	})
}

// The log of a fault has neither the key nor the body of a request.
func TestLogHasNoSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(lines)
		b := setupJoined(t, parts{opts: []idem.Option{idem.WithLogger(log.logger())}})
		b.wantRefused(second(b.doWith("secret-key", "secret body", answers(201))), idem.CodeOutcomeUnknown)
		got := strings.Join(log.take(), "\n")
		if !strings.Contains(got, idem.NewKeyID("m1", "secret-key").OperationID()) || strings.Contains(got, "secret") {
			t.Errorf("the log has %q, want the operation ID, and neither key nor body", got)
		}
	})
}

func second[A, B any](_ A, b B) B { return b }

func TestFaultsGoToTheDefaultLoggerUnlessItIsTurnedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, before := new(lines), slog.Default()
		t.Cleanup(func() { slog.SetDefault(before) })
		internal := idem.NewRefusal(idem.CodeInternal, errors.New("no scope"))
		for _, off := range []bool{false, true} {
			var opts []idem.Option
			if off {
				opts = append(opts, idem.WithLogger(slog.New(slog.DiscardHandler)))
			}
			b := setup(t, parts{opts: opts})
			slog.SetDefault(log.logger()) // also after the engine was made
			if b.engine.ReportRefused(b.Context(), "POST /pay", internal); off {
				log.wantNothing(t)
			} else {
				log.want(t, "no scope")
			}
		}
	})
}

// logging is telemetry that logs every event.
type logging struct{ measured }

func (*logging) Logs() bool { return true }

func TestFaultsAreNotLoggedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, before := new(lines), slog.Default()
		t.Cleanup(func() { slog.SetDefault(before) })
		slog.SetDefault(log.logger())
		internal := idem.NewRefusal(idem.CodeInternal, errors.New("no scope"))
		for _, opts := range [][]idem.Option{{idem.WithTelemetry(&logging{})}, {idem.WithTelemetry(&logging{}), idem.WithLogger(log.logger())}} {
			b := setup(t, parts{opts: opts})
			if b.engine.ReportRefused(b.Context(), "POST /pay", internal); len(opts) == 1 {
				log.wantNothing(t)
			} else {
				log.want(t, "no scope")
			}
		}
	})
}

// What clients do wrong, and what they leave, is no fault of the server.
func TestFaultsOfClientsAreNotLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(lines)
		b := setup(t, parts{opts: []idem.Option{idem.WithLogger(log.logger())}})
		for _, code := range []idem.Code{idem.CodeKeyMissing, idem.CodeKeyInvalid, idem.CodeBodyInvalid, idem.CodeTokenUnknown, idem.CodeInProgress, idem.CodeKeyReused,
			idem.CodeOutcomeUnknown, idem.CodeKeyExpired, idem.CodeResultUnavailable, idem.CodeBodyTooLarge, idem.CodeBodyIncomplete, idem.CodeTooManyOpen} {
			b.engine.ReportRefused(b.Context(), "POST /pay", idem.NewRefusal(code, nil))
		}
		gone, leave := context.WithCancel(b.Context())
		leave()
		b.wantRefused(second(b.engine.Do(gone, b.operation("k", "body"), b.pay)), idem.CodeUnavailable)
		b.engine.ReportUnprotected(b.Context(), "POST /pay")
		log.wantNothing(t)
	})
}

// A service whose routes or reasons are without end does not fill the log with them, nor the memory.
func TestFaultsWithoutEndShareALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(lines)
		b := setup(t, parts{opts: []idem.Option{idem.WithLogger(log.logger())}})
		for i := range 1000 {
			b.engine.ReportRefused(b.Context(), fmt.Sprintf("POST /%d", i), idem.NewRefusal(idem.CodeInternal, errors.New("no scope")))
		}
		if n := len(log.take()); n != 101 {
			t.Errorf("the log has %d lines for 1000 routes, want 101", n)
		}
	})
}

// hostile is a handler that panics, or blocks until it is freed.
type hostile struct {
	slog.Handler
	calls atomic.Int64
	free  chan struct{} // nil panics
}

func (h *hostile) Handle(context.Context, slog.Record) error {
	h.calls.Add(1)
	if h.free == nil {
		panic("handler of the log")
	}
	<-h.free
	return nil
}

func TestLoggerThatPanicsBreaksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{Handler: slog.NewTextHandler(new(lines), nil)}
		b := setupJoined(t, parts{opts: []idem.Option{idem.WithLogger(slog.New(h))}})
		b.wantRefused(second(b.doWith("k", "body", answers(201))), idem.CodeOutcomeUnknown)
		if h.calls.Load() == 0 {
			t.Error("the logger was not called")
		}
	})
}

// A logger that blocks delays a request once for each fault, and Close once.
func TestLoggerThatBlocksDelaysBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hostile{Handler: slog.NewTextHandler(new(lines), nil), free: make(chan struct{})}
		b := setup(t, parts{opts: []idem.Option{idem.WithLogger(slog.New(h))}})
		started := time.Now()
		for range 100 {
			b.engine.ReportRefused(b.Context(), "POST /pay", idem.NewRefusal(idem.CodeInternal, errors.New("no scope")))
			time.Sleep(time.Minute)
		}
		if late := time.Since(started) - 100*time.Minute; late != 100*time.Millisecond {
			t.Errorf("100 refusals took %v longer than without a log, want 100ms", late)
		}
		started = time.Now()
		if err := b.engine.Close(b.Context()); err != nil {
			t.Errorf("Close() = %v", err)
		}
		if took := time.Since(started); took != 100*time.Millisecond {
			t.Errorf("Close() took %v, want 100ms", took)
		}
		if h.calls.Load() != 2 {
			t.Errorf("the logger was called %d times, want once for the fault and once for the count", h.calls.Load())
		}
		close(h.free)
	})
}

// An outcome in doubt waits for a resolver or a person, so the log has its operation and the next step.
func TestOutcomeInDoubtIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(lines)
		b := setup(t, parts{opts: []idem.Option{idem.WithLogger(log.logger())}})
		if _, err := b.doWith("k", "body", answers(500)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(log.take(), "\n"); !strings.Contains(got, idem.NewKeyID("m1", "k").OperationID()) || !strings.Contains(got, "idemctl record resolve") {
			t.Errorf("the log has %q, want the operation and the next step", got)
		}
	})
}
