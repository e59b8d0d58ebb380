package observe_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/observe"
	"github.com/idemkeeper/idemkeeper/sweeper"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// bundle is an observed engine on in-process parts.
type bundle struct {
	*testing.T
	engine  *idem.Engine
	store   *idemtest.FaultyStore
	policy  idem.Policy
	tracer  trace.Tracer // of the application
	spans   *tracetest.SpanRecorder
	metrics *metric.ManualReader
	log     bytes.Buffer
	o       *observe.Observer
}

func setupObserved(t *testing.T, sampler sdktrace.Sampler) *bundle {
	t.Helper()
	b := &bundle{T: t, spans: tracetest.NewSpanRecorder(), metrics: metric.NewManualReader(), store: idemtest.NewFaultyStore(memorystore.New())}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(b.spans), sdktrace.WithSampler(sampler))
	b.tracer = tracers.Tracer("application")
	b.o = observe.New(observe.WithTracerProvider(tracers), observe.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(b.metrics))),
		observe.WithLogger(slog.New(slog.NewTextHandler(&b.log, nil))))
	var err error
	if b.engine, err = idem.New(memorylock.New(), b.store, b.o.Engine()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.engine.Close(context.Background()) })
	b.policy = idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}
	return b
}

func (b *bundle) do(key string, h idem.Handler) (idem.Result, error) {
	ctx, span := b.tracer.Start(context.Background(), "server")
	defer span.End()
	return b.engine.Do(ctx, idem.Operation{Transport: idem.TransportHTTP, Key: idem.Key(key), Policy: &b.policy,
		Fingerprint: func(v uint8) (driver.Fingerprint, error) {
			return driver.Fingerprint{Version: v, Sum: [32]byte{1}}, nil
		}}, h)
}

// pay is a handler with a span of its own.
func (b *bundle) pay(ctx context.Context) (idem.Response, error) {
	_, span := b.tracer.Start(ctx, "charge")
	span.End()
	return idem.Response{Status: 201}, nil
}

// take returns the spans that ended since the last call, by name.
func (b *bundle) take() map[string]sdktrace.ReadOnlySpan {
	all := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range b.spans.Ended() {
		all[s.Name()] = s
	}
	b.spans.Reset()
	return all
}

func attributeOf(s sdktrace.ReadOnlySpan, key string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

func TestRequestIsASpanWithChildren(t *testing.T) {
	b := setupObserved(t, sdktrace.AlwaysSample())
	if _, err := b.do("key-1", b.pay); err != nil {
		t.Fatal(err)
	}
	spans := b.take()
	for child, parent := range map[string]string{
		"idemkeeper.request": "server",
		"idemkeeper.read":    "idemkeeper.request",
		"idemkeeper.lock":    "idemkeeper.request",
		"idemkeeper.begin":   "idemkeeper.request",
		"idemkeeper.handler": "idemkeeper.request",
		"idemkeeper.settle":  "idemkeeper.request",
		"charge":             "idemkeeper.handler",
	} {
		if spans[child] == nil {
			t.Errorf("there is no span %s", child)
		} else if got, want := spans[child].Parent().SpanID(), spans[parent].SpanContext().SpanID(); got != want {
			t.Errorf("the parent of %s is %v, want %v, the span %s", child, got, want, parent)
		}
	}
	request := spans["idemkeeper.request"]
	op := idem.NewKeyID("", "key-1").OperationID()
	if attributeOf(request, "idemkeeper.outcome") != "completed" || attributeOf(request, "idemkeeper.operation") != op || attributeOf(request, "idemkeeper.attempt") != "1" {
		t.Errorf("attributes of the request = %v, want completed, attempt 1 and %s", request.Attributes(), op)
	}
	execution := spans["idemkeeper.handler"].SpanContext()

	res, err := b.do("key-1", b.pay)
	if err != nil || !res.Replayed {
		t.Fatalf("repeat = %+v, %v, want a replay", res, err)
	}
	request = b.take()["idemkeeper.request"]
	if attributeOf(request, "idemkeeper.outcome") != "replayed" {
		t.Errorf("attributes of the repeat = %v, want replayed", request.Attributes())
	}
	if links := request.Links(); len(links) != 1 || links[0].SpanContext.TraceID() != execution.TraceID() || links[0].SpanContext.SpanID() != execution.SpanID() {
		t.Errorf("links of the repeat = %v, want one to %v", links, execution)
	}
	if request.SpanContext().TraceID() == execution.TraceID() {
		t.Error("the repeat is in the trace of the execution, so the test shows nothing")
	}
}

func TestOnlyFaultsOfTheServiceAreErrors(t *testing.T) {
	b := setupObserved(t, sdktrace.AlwaysSample())
	if _, err := b.do("k", func(context.Context) (idem.Response, error) { return idem.Response{Status: 500}, nil }); err != nil {
		t.Fatal(err)
	}
	b.take()
	_, _ = b.do("k", b.pay)
	if s := b.take()["idemkeeper.request"]; s.Status().Code == codes.Error {
		t.Errorf("a repeat in doubt has status %v, want no error", s.Status())
	}
	b.store.FailBefore("Get", idemtest.Every, driver.ErrUnavailable)
	_, _ = b.do("k2", b.pay)
	spans := b.take()
	for _, name := range []string{"idemkeeper.request", "idemkeeper.read"} {
		if s := spans[name]; s.Status().Code != codes.Error || attributeOf(s, "error.type") != "unavailable" {
			t.Errorf("%s in an outage has status %v and attributes %v, want an error", name, s.Status(), s.Attributes())
		}
	}
}

// What is not sampled costs no spans, and leaves no link.
func TestUnsampledRequest(t *testing.T) {
	b := setupObserved(t, sdktrace.NeverSample())
	res, err := b.do("k", b.pay)
	if err != nil || !res.Response.Span.IsZero() {
		t.Errorf("do() = %+v, %v, want no span with the response", res, err)
	}
	if n := len(b.spans.Started()); n != 0 {
		t.Errorf("%d spans were recorded, want none", n)
	}
}

// points returns the values of a metric by its attributes, "k=v,k=v".
func (b *bundle) points() (values map[string]map[string]float64, units map[string]string) {
	b.Helper()
	var all metricdata.ResourceMetrics
	if err := b.metrics.Collect(context.Background(), &all); err != nil {
		b.Fatal(err)
	}
	values, units = map[string]map[string]float64{}, map[string]string{}
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			of := map[string]float64{}
			values[m.Name], units[m.Name] = of, m.Unit
			at := func(a attribute.Set, v float64) { of[a.Encoded(attribute.DefaultEncoder())] = v }
			switch d := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					at(p.Attributes, float64(p.Count))
				}
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					at(p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					at(p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range d.DataPoints {
					at(p.Attributes, p.Value)
				}
			default:
				b.Errorf("%s is a %T", m.Name, d)
			}
		}
	}
	return values, units
}

func TestMetrics(t *testing.T) {
	b := setupObserved(t, sdktrace.NeverSample())
	_, _ = b.do("k1", b.pay)
	_, _ = b.do("k1", b.pay)
	_, _ = b.do("k1", b.pay)
	_, _ = b.do("k2", func(context.Context) (idem.Response, error) { return idem.Response{}, errors.New("no answer") })
	b.engine.ReportRefused(context.Background(), "POST /pay", idem.NewRefusal(idem.CodeKeyMissing, nil))
	during := func(ctx context.Context) (idem.Response, error) {
		if values, _ := b.points(); values["idemkeeper.running_executions"][""] != 1 || values["idemkeeper.open_records"]["idemkeeper.age=under-1m,idemkeeper.state=pending"] != 1 {
			t.Errorf("during an execution: %v", values)
		}
		return b.pay(ctx)
	}
	_, _ = b.do("k3", during)
	s, err := sweeper.New(b.engine, []idem.Policy{b.policy}, b.o.Sweeper(), sweeper.WithMinAge(0))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	swept := make(chan struct{})
	go func() { defer close(swept); s.Run(ctx) }()
	for {
		if values, _ := b.points(); values["idemkeeper.sweeper_passes"]["idemkeeper.result=done"] > 0 {
			break
		}
	}
	stop()
	<-swept

	values, units := b.points()
	known := map[string]bool{}
	for _, want := range []struct {
		name, unit, attributes string
		value                  float64
	}{
		{"idemkeeper.request.duration", "s", "idemkeeper.outcome=completed,idemkeeper.route=POST /pay", 2},
		{"idemkeeper.request.duration", "s", "idemkeeper.outcome=replayed,idemkeeper.route=POST /pay", 2},
		{"idemkeeper.request.duration", "s", "error.type=outcome-unknown,idemkeeper.outcome=unknown,idemkeeper.route=POST /pay", 1},
		{"idemkeeper.request.duration", "s", "error.type=key-missing,idemkeeper.outcome=refused,idemkeeper.route=POST /pay", 1},
		{"idemkeeper.step.duration", "s", "idemkeeper.route=POST /pay,idemkeeper.step=lock", 3},
		{"idemkeeper.step.duration", "s", "idemkeeper.route=POST /pay,idemkeeper.step=handler", 2},
		{"idemkeeper.step.duration", "s", "error.type=_OTHER,idemkeeper.route=POST /pay,idemkeeper.step=handler", 1},
		{"idemkeeper.step.duration", "s", "idemkeeper.route=POST /pay,idemkeeper.step=settle", 3},
		{"idemkeeper.events", "{event}", "idemkeeper.event=unknown,idemkeeper.route=POST /pay", 1},
		{"idemkeeper.running_executions", "{execution}", "", 0},
		{"idemkeeper.running_oldest", "s", "", 0},
		{"idemkeeper.open_records", "{record}", "idemkeeper.age=under-1m,idemkeeper.state=unknown", 1},
		{"idemkeeper.open_records", "{record}", "idemkeeper.age=over-1d,idemkeeper.state=unknown", 0},
		{"idemkeeper.doubts", "{record}", "idemkeeper.age=under-1m,idemkeeper.route=POST /pay", 1},
		{"idemkeeper.doubts", "{record}", "idemkeeper.age=over-1d,idemkeeper.route=POST /pay", 0},
		{"idemkeeper.unlisted_stores", "{store}", "", 0},
		{"idemkeeper.open_oldest", "s", "idemkeeper.state=pending", 0},
		{"idemkeeper.unreadable_records", "{record}", "idemkeeper.reason=corrupt", 0},
		{"idemkeeper.sweeper_leads", "{leader}", "", 1},
		{"idemkeeper.sweeper_passes", "{pass}", "idemkeeper.result=done", values["idemkeeper.sweeper_passes"]["idemkeeper.result=done"]},
		{"idemkeeper.swept_records", "{record}", "idemkeeper.result=applied", 0},
	} {
		of, ok := values[want.name]
		if got, there := of[want.attributes]; !there || got != want.value || units[want.name] != want.unit {
			t.Errorf("%s{%s} = %v in %q, want %v in %q; all: %v (there: %v)", want.name, want.attributes, got, units[want.name], want.value, want.unit, of, ok)
		}
		known[want.name] = true
	}
	for name := range units {
		if !known[name] {
			t.Errorf("the test does not know metric %s", name)
		}
	}
}

// While the store is away, its gauges are missing and all others are there.
func TestMetricsInAnOutage(t *testing.T) {
	b := setupObserved(t, sdktrace.NeverSample())
	b.store.FailBefore("ListOpen", idemtest.Every, driver.ErrUnavailable)
	values, _ := b.points()
	if len(values["idemkeeper.open_records"]) > 0 || len(values["idemkeeper.running_executions"]) != 1 {
		t.Errorf("metrics in an outage: %v", values)
	}
	if values["idemkeeper.unlisted_stores"][""] != 1 {
		t.Errorf("unlisted stores in an outage: %v, want 1", values["idemkeeper.unlisted_stores"])
	}
}

// halfStore lists the records of a part of it, and an error for the other part.
type halfStore struct{ driver.Store }

func (s halfStore) ListOpen(ctx context.Context, q driver.OpenQuery) (driver.OpenPage, error) {
	page, err := s.Store.ListOpen(ctx, q)
	return page, cmp.Or(err, driver.ErrUnavailable)
}

// The gauges count what is listed, and say that it is not all.
func TestMetricsOfAStoreThatListsAPart(t *testing.T) {
	b := setupObserved(t, sdktrace.NeverSample())
	engine, err := idem.New(memorylock.New(), halfStore{memorystore.New()}, b.o.Engine())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	b.engine = engine
	_, _ = b.do("k", func(context.Context) (idem.Response, error) { return idem.Response{}, errors.New("no answer") })
	values, _ := b.points()
	if n := values["idemkeeper.open_records"]["idemkeeper.age=under-1m,idemkeeper.state=unknown"]; n != 1 || values["idemkeeper.unlisted_stores"][""] != 1 {
		t.Errorf("%v records in doubt and %v, want 1 of each", n, values["idemkeeper.unlisted_stores"])
	}
}

// The gauges of an observer add up its engines and their stores. Two engines of one store do not
// count it twice, and a store that is away does not hide another one.
func TestMetricsOfSeveralEngines(t *testing.T) {
	b := setupObserved(t, sdktrace.NeverSample())
	other := idemtest.NewFaultyStore(memorystore.New())
	engines := []telemetry.Engine{b.engine}
	for _, store := range []driver.Store{b.store, other} {
		engine, err := idem.New(memorylock.New(), store, b.o.Engine())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = engine.Close(context.Background()) })
		engines = append(engines, engine)
	}
	doubt := func(context.Context) (idem.Response, error) { return idem.Response{}, errors.New("no answer") }
	want := func(name, attributes string, value float64) {
		t.Helper()
		if values, _ := b.points(); values[name][attributes] != value {
			t.Errorf("%s{%s} = %v, want %v", name, attributes, values[name], value)
		}
	}
	for i, engine := range engines { // one doubt in each engine
		b.engine = engine.(*idem.Engine)
		_, _ = b.do(fmt.Sprint("k", i), doubt)
	}
	const unknown = "idemkeeper.age=under-1m,idemkeeper.state=unknown"
	want("idemkeeper.open_records", unknown, 3)
	b.engine = engines[0].(*idem.Engine)
	_, _ = b.do("outer", func(context.Context) (idem.Response, error) {
		b.engine = engines[2].(*idem.Engine)
		res, err := b.do("inner", func(ctx context.Context) (idem.Response, error) {
			want("idemkeeper.running_executions", "", 2)
			return b.pay(ctx)
		})
		return res.Response, err
	})
	other.FailBefore("ListOpen", idemtest.Every, driver.ErrUnavailable)
	want("idemkeeper.open_records", unknown, 2)
}

// One grep for the operation ID tells the story of a key, and its key is nowhere.
func TestLogTellsTheStoryOfAKey(t *testing.T) {
	const key = "customer-4711-order-1"
	b := setupObserved(t, sdktrace.AlwaysSample())
	_, _ = b.do(key, func(context.Context) (idem.Response, error) { return idem.Response{Status: 429}, nil })
	_, _ = b.do(key, b.pay)
	_, _ = b.do(key, b.pay)
	_, _ = b.do("another", b.pay)
	op := idem.NewKeyID("", key).OperationID()
	var story []string
	for line := range strings.Lines(b.log.String()) {
		if strings.Contains(line, "op="+op) {
			_, rest, _ := strings.Cut(line, "event=")
			event, _, _ := strings.Cut(rest, " ")
			story = append(story, event)
			if !strings.Contains(line, "trace_id=") {
				t.Errorf("line %q does not lead to the trace", line)
			}
		}
	}
	if want := []string{"begun", "released", "begun", "completed", "replayed"}; !slices.Equal(story, want) {
		t.Errorf("the story of %s is %q, want %q:\n%s", op, story, want, b.log.String())
	}
	values, _ := b.points()
	var told strings.Builder
	told.WriteString(b.log.String() + fmt.Sprint(values))
	for _, s := range b.spans.Ended() {
		fmt.Fprint(&told, s.Name(), s.Attributes(), s.Events(), s.Status())
	}
	all := told.String()
	if strings.Contains(all, key) {
		t.Errorf("the key is in the log, the metrics or the spans:\n%s", all)
	}
}
