package idem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// measured is a Telemetry that writes steps down as "parent>step".
type measured struct {
	mu      sync.Mutex
	spans   byte
	started []string
	ended   []telemetry.StepEnd
	store   driver.Store
}

type spanKey struct{}

// spanning is the value of spanKey.
type spanning struct {
	step telemetry.Step
	span driver.Span
}

func (m *measured) Watch(_ telemetry.Engine, s driver.Store) { m.store = s }

func (m *measured) StartStep(ctx context.Context, start telemetry.StepStart) (context.Context, any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, name := start.Step, start.Step.String()
	if request, ok := start.Request.(spanning); ok != (s != telemetry.StepRequest) || ok && request.step != telemetry.StepRequest {
		panic(fmt.Sprintf("%v belongs to %v", s, start.Request))
	}
	if outer, ok := ctx.Value(spanKey{}).(spanning); ok {
		name = outer.step.String() + ">" + name
	}
	m.started = append(m.started, name)
	m.spans++
	trace := spanning{s, driver.Span{SpanID: [8]byte{m.spans}}}
	return context.WithValue(ctx, spanKey{}, trace), trace
}

func (m *measured) EndStep(ctx context.Context, trace any, end telemetry.StepEnd) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if got := ctx.Value(spanKey{}).(spanning); got != trace || got.step != end.Step {
		panic(fmt.Sprintf("%v ends in the context of %v", end.Step, got))
	}
	m.ended = append(m.ended, end)
}

func (m *measured) Span(trace any) driver.Span { return trace.(spanning).span }

func spanIn(ctx context.Context) driver.Span {
	s, _ := ctx.Value(spanKey{}).(spanning)
	return s.span
}

func (m *measured) Event(context.Context, telemetry.Event) {}

// take returns the started steps since the last call, and the end of the request.
func (m *measured) take(t *testing.T) (steps string, request telemetry.StepEnd) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.started) != len(m.ended) {
		t.Errorf("%d steps started and %d ended: %q, %v", len(m.started), len(m.ended), m.started, m.ended)
	}
	for _, end := range m.ended {
		if end.Step == telemetry.StepRequest {
			request = end
		}
	}
	steps = strings.ReplaceAll(strings.Join(m.started, " "), "request>", "")
	m.started, m.ended = nil, nil
	return steps, request
}

func TestTelemetrySeesTheStepsOfARequest(t *testing.T) {
	m := &measured{}
	b := setup(t, parts{opts: []idem.Option{idem.WithTelemetry(m)}})
	if m.store == nil {
		t.Error("Watch got no store")
	}
	var inHandler driver.Span
	pay := func(status int, err error) func(context.Context) (idem.Response, error) {
		return func(ctx context.Context) (idem.Response, error) {
			inHandler = spanIn(ctx)
			return idem.Response{Status: status}, err
		}
	}
	const fresh = "request read lock begin handler settle"
	check := func(name, wantSteps string, want telemetry.StepEnd) {
		t.Helper()
		steps, got := m.take(t)
		if steps != wantSteps {
			t.Errorf("%s: steps = %s, want %s", name, steps, wantSteps)
		}
		if got.Outcome != want.Outcome || got.Code != want.Code || got.Attempt != want.Attempt || got.Origin != want.Origin || got.Route != "POST /pay" {
			t.Errorf("%s: request ended %+v, want %+v", name, got, want)
		}
	}

	_, _ = b.doWith("k1", "body", pay(201, nil))
	execution := inHandler
	check("fresh", fresh, telemetry.StepEnd{Outcome: telemetry.OutcomeCompleted, Attempt: 1})
	_, _ = b.doWith("k1", "body", pay(201, nil))
	check("replayed", "request read", telemetry.StepEnd{Outcome: telemetry.OutcomeReplayed, Attempt: 1, Origin: execution})
	_, _ = b.doWith("k2", "body", pay(429, nil))
	check("released", fresh, telemetry.StepEnd{Outcome: telemetry.OutcomeReleased, Attempt: 1})
	_, _ = b.doWith("k2", "body", pay(500, errors.New("no answer")))
	check("unknown", fresh, telemetry.StepEnd{Outcome: telemetry.OutcomeUnknown, Code: string(idem.CodeOutcomeUnknown), Attempt: 2})
	_, _ = b.doWith("k2", "body", pay(201, nil))
	check("refused", "request read", telemetry.StepEnd{Outcome: telemetry.OutcomeRefused, Code: string(idem.CodeOutcomeUnknown)})
	func() {
		defer func() { _ = recover() }()
		_, _ = b.doWith("k3", "body", func(context.Context) (idem.Response, error) { panic("handler") })
	}()
	check("panic", fresh, telemetry.StepEnd{Outcome: telemetry.OutcomeUnknown, Attempt: 1})
	b.engine.ReportRefused(context.Background(), "POST /pay", idem.NewRefusal(idem.CodeKeyMissing, nil))
	check("refused by the adapter", "request", telemetry.StepEnd{Outcome: telemetry.OutcomeRefused, Code: string(idem.CodeKeyMissing)})
	b.engine.ReportUnprotected(context.Background(), "POST /pay")
	check("unprotected", "request", telemetry.StepEnd{Outcome: telemetry.OutcomeUnprotected})
}

// A request without a key has steps of its own in joined mode.
func TestTelemetrySeesTheStepsOfARequestWithoutAKey(t *testing.T) {
	m := &measured{}
	b := setupJoined(t, parts{opts: []idem.Option{idem.WithTelemetry(m)}})
	for _, tt := range []struct {
		steps   string
		outcome telemetry.Outcome
		code    idem.Code
		begin   error
		commit  error
	}{
		{"request begin handler settle", telemetry.OutcomeUnprotected, "", nil, nil},
		{"request begin", telemetry.OutcomeRefused, idem.CodeUnavailable, driver.ErrUnavailable, nil},
		{"request begin handler settle", telemetry.OutcomeUnknown, idem.CodeOutcomeUnknown, nil, driver.ErrUnavailable},
	} {
		b.ledger.onBegin = func() (bool, driver.JoinedBegin, error) { return tt.begin != nil, driver.JoinedBegin{}, tt.begin }
		b.ledger.onCommit = func(*bookTx, driver.Settlement) (bool, error) { return tt.commit != nil, tt.commit }
		_, _ = b.withoutKey(idem.TransportHTTP, b.paying(201))
		if steps, got := m.take(t); steps != tt.steps || got.Outcome != tt.outcome || got.Code != string(tt.code) || got.Route != "POST /pay" {
			t.Errorf("%v, %v: steps = %s, and the request ended %+v, want %s, %v", tt.begin, tt.commit, steps, got, tt.steps, tt.outcome)
		}
	}
}

// TestTelemetryTellsAReleaseWhateverTheRecordIsThen: a token is issued again, and a rolled-back
// transaction leaves the record of before.
func TestTelemetryTellsAReleaseWhateverTheRecordIsThen(t *testing.T) {
	t.Run("token", func(t *testing.T) {
		m := &measured{}
		b := setup(t, parts{opts: []idem.Option{idem.WithTelemetry(m)}, policy: func(p *idem.Policy) { p.IssuedTokens = true }})
		token, err := b.engine.IssueToken(t.Context(), "m1", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.doWith(string(token.Value), "body", answers(429)); err != nil {
			t.Fatal(err)
		}
		if _, request := m.take(t); request.Outcome != telemetry.OutcomeReleased {
			t.Errorf("outcome = %v, want %v", request.Outcome, telemetry.OutcomeReleased)
		}
	})
	t.Run("rolled back", func(t *testing.T) {
		m := &measured{}
		b := setupJoined(t, parts{opts: []idem.Option{idem.WithTelemetry(m)}})
		if _, err := b.doWith("k", "body", b.paying(500)); err != nil {
			t.Fatal(err)
		}
		if _, request := m.take(t); request.Outcome != telemetry.OutcomeReleased {
			t.Errorf("outcome = %v, want %v", request.Outcome, telemetry.OutcomeReleased)
		}
	})
	t.Run("rolled back to an attempt in doubt", func(t *testing.T) {
		m := &measured{}
		b := setupJoined(t, parts{opts: []idem.Option{idem.WithTelemetry(m)}, policy: runsAgain})
		b.interruptedJoined("k")
		if _, err := b.doWith("k", "100", b.paying(500)); err != nil {
			t.Fatal(err)
		}
		if _, request := m.take(t); request.Outcome != telemetry.OutcomeUnknown {
			t.Errorf("outcome = %v, want %v", request.Outcome, telemetry.OutcomeUnknown)
		}
	})
}

func TestTelemetrySeesAnOutage(t *testing.T) {
	m := &measured{}
	b := setup(t, parts{opts: []idem.Option{idem.WithTelemetry(m)}, policy: func(p *idem.Policy) { p.FailOpen = true }})
	b.locks.FailBefore("TryAcquire", idemtest.Every, driver.ErrUnavailable)
	if _, err := b.do("k", "body"); err != nil {
		t.Fatal(err)
	}
	steps, request := m.take(t)
	if steps != "request read lock handler" || request.Outcome != telemetry.OutcomeFailedOpen {
		t.Errorf("steps = %s and outcome %v, want a handler that failed open", steps, request.Outcome)
	}
}

// A duplicate that waits is measured too, and its replay is linked to the execution.
func TestTelemetrySeesAWait(t *testing.T) {
	m := &measured{}
	waits := make(chan struct{})
	b := setup(t, parts{
		opts: []idem.Option{idem.WithTelemetry(m), idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
			if ev.Type == telemetry.EventJoined {
				close(waits)
			}
		})},
		policy: func(p *idem.Policy) { p.DuplicateWait = patience },
	})
	var all sync.WaitGroup
	var execution driver.Span
	_, err := b.doWith("k", "body", func(ctx context.Context) (idem.Response, error) {
		execution = spanIn(ctx)
		all.Go(func() {
			if res, err := b.do("k", "body"); err != nil || res.Response.Span != execution {
				t.Errorf("duplicate = %+v, %v, want a replay of %x", res, err, execution)
			}
		})
		<-waits
		return idem.Response{Status: 201}, nil
	})
	all.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if steps, _ := m.take(t); !slices.Contains(strings.Fields(steps), "wait") {
		t.Errorf("steps = %s, want one of them to be wait", steps)
	}
}

// A duplicate may wait in vain. The step tells why.
func TestTelemetrySeesWhyAWaitEnded(t *testing.T) {
	for name, tt := range map[string]struct {
		leaves bool
		want   error
		code   idem.Code
	}{
		"its time is over":     {false, context.DeadlineExceeded, idem.CodeInProgress},
		"its client goes away": {true, context.Canceled, idem.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &measured{}
				b := setup(t, parts{opts: []idem.Option{idem.WithTelemetry(m)}, policy: func(p *idem.Policy) { p.DuplicateWait = time.Second }})
				end := b.started("k", "body", answers(201))
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if tt.leaves {
					time.AfterFunc(time.Millisecond, cancel)
				}
				_, err := b.engine.Do(ctx, b.operation("k", "body"), b.pay)
				b.wantRefused(err, tt.code)
				if _, err := end(); err != nil {
					t.Fatal(err)
				}
				i := slices.IndexFunc(m.ended, func(end telemetry.StepEnd) bool { return end.Step == telemetry.StepWait })
				if i < 0 || !errors.Is(m.ended[i].Err, tt.want) {
					t.Errorf("steps ended with %+v, want a wait that ended with %v", m.ended, tt.want)
				}
			})
		})
	}
}

// broken is a Telemetry that panics.
type broken struct{ measured }

func (*broken) StartStep(context.Context, telemetry.StepStart) (context.Context, any) {
	panic("StartStep")
}
func (*broken) EndStep(context.Context, any, telemetry.StepEnd) { panic("EndStep") }
func (*broken) Span(any) driver.Span                            { panic("Span") }
func (*broken) Event(context.Context, telemetry.Event)          { panic("Event") }

// brokenAtTheEnd starts steps.
type brokenAtTheEnd struct{ broken }

func (b *brokenAtTheEnd) StartStep(ctx context.Context, start telemetry.StepStart) (context.Context, any) {
	return b.measured.StartStep(ctx, start)
}

func TestTelemetryCannotBreakARequest(t *testing.T) {
	for name, recorder := range map[string]telemetry.Recorder{"everywhere": &broken{}, "at the end": &brokenAtTheEnd{}} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{opts: []idem.Option{idem.WithTelemetry(recorder)}})
			for range 2 {
				if res, err := b.do("k", "body"); err != nil || res.Response.Status != 201 {
					t.Fatalf("do() = %+v, %v, want 201", res, err)
				}
			}
			b.wantRuns(1)
			if len(b.events) == 0 {
				t.Error("the observer saw no event")
			}
		})
	}
}
