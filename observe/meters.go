package observe

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// buckets reach from a memory look-up to a slow card network, in seconds.
var buckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// meters are the metrics of an observer.
type meters struct {
	meter    metric.Meter
	requests metric.Float64Histogram
	steps    metric.Float64Histogram
	events   metric.Int64Counter
	leads    metric.Int64Gauge
	passes   metric.Int64Counter
	records  metric.Int64Counter
	sets     sets
	watched  watched
}

// labels choose the attributes of a measurement. The zero values of one are left out.
type labels struct {
	route, errorType string
	kind             attribute.Key
	value            string
}

// set is a list of attributes in the forms that the instruments take.
type set struct {
	record []metric.RecordOption
	add    []metric.AddOption
}

func newMeters(m metric.Meter) *meters {
	return &meters{
		meter: m,
		requests: must(m.Float64Histogram("idemkeeper.request.duration", metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(buckets...),
			metric.WithDescription("Requests to protected operations, by outcome. For a refusal error.type is its code."))),
		steps: must(m.Float64Histogram("idemkeeper.step.duration", metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(buckets...),
			metric.WithDescription("Steps of requests: wait, lock, handler, settle and resolve. Each handler is an execution."))),
		events: must(m.Int64Counter("idemkeeper.events", metric.WithUnit("{event}"),
			metric.WithDescription("Events of the engine that are out of the ordinary."))),
		leads: must(m.Int64Gauge("idemkeeper.sweeper_leads", metric.WithUnit("{leader}"),
			metric.WithDescription("1 if this instance is the one that sweeps."))),
		passes: must(m.Int64Counter("idemkeeper.sweeper_passes", metric.WithUnit("{pass}"),
			metric.WithDescription("Walks of this instance over the open records. A failed walk could not read or settle all of them."))),
		records: must(m.Int64Counter("idemkeeper.swept_records", metric.WithUnit("{record}"),
			metric.WithDescription("Open records that the sweeper of this instance looked at, by result."))),
	}
}

// must reports the error of an instrument. The instrument then measures nothing.
func must[T any](instrument T, err error) T {
	if err != nil {
		otel.Handle(err)
	}
	return instrument
}

// sets has the attributes of all labels so far. Each list is made once, because that is costly.
// There are few, because routes are names of policies and not texts of clients.
type sets struct {
	mu  sync.Mutex // held while a list is added to a copy
	all atomic.Pointer[map[labels]*set]
}

// of returns the attributes of labels.
func (m *meters) of(l labels) *set {
	if all := m.sets.all.Load(); all != nil {
		if s := (*all)[l]; s != nil {
			return s
		}
	}
	if l.kind == keyOutcome {
		m.seed(l.route)
	}
	return m.sets.add(l)
}

// seeded are the events that rules alert on, and the one whose number has to fall to zero before keys are required.
var seeded = []telemetry.EventType{telemetry.EventUnprotected, telemetry.EventUnknown, telemetry.EventResolved, telemetry.EventFailedOpen, telemetry.EventOwnershipLost, telemetry.EventSettleDelayed,
	telemetry.EventSettleAbandoned, telemetry.EventUnstored, telemetry.EventRepaired, telemetry.EventMisused}

// routes are those that had a request since the start.
func (m *meters) routes() (list []string) {
	if all := m.sets.all.Load(); all != nil {
		for l := range *all {
			if l.kind == keyOutcome && !slices.Contains(list, l.route) {
				list = append(list, l.route)
			}
		}
	}
	return list
}

// seed counts zero events of a route. A rule sees an increase only from a value that was there.
func (m *meters) seed(route string) {
	for _, t := range seeded {
		m.events.Add(context.Background(), 0, m.of(labels{route: route, kind: keyEvent, value: t.String()}).add...)
	}
}

func (m *sets) add(l labels) *set {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[labels]*set{}
	if before := m.all.Load(); before != nil {
		all = maps.Clone(*before)
	}
	if s := all[l]; s != nil { // added meanwhile
		return s
	}
	var attrs []attribute.KeyValue
	if l.route != "" {
		attrs = append(attrs, keyRoute.String(l.route))
	}
	if l.kind != "" {
		attrs = append(attrs, l.kind.String(l.value))
	}
	if l.errorType != "" {
		attrs = append(attrs, keyErrorType.String(l.errorType))
	}
	opt := metric.WithAttributeSet(attribute.NewSet(attrs...))
	s := &set{record: []metric.RecordOption{opt}, add: []metric.AddOption{opt}}
	all[l] = s
	m.all.Store(&all)
	return s
}

// ended measures a step.
func (m *meters) ended(ctx context.Context, end *telemetry.StepEnd) {
	if end.Step == telemetry.StepRequest {
		l := labels{route: end.Route, errorType: errorType(end), kind: keyOutcome, value: end.Outcome.String()}
		m.requests.Record(ctx, end.Duration.Seconds(), m.of(l).record...)
	} else if measured(end.Step) {
		l := labels{route: end.Route, errorType: errorType(end), kind: keyStep, value: end.Step.String()}
		m.steps.Record(ctx, end.Duration.Seconds(), m.of(l).record...)
	}
}

// measured reports whether the metrics have a step. The settle tells as much about the store as
// the steps that are left out, which only traces have.
func measured(s telemetry.Step) bool { return s != telemetry.StepRead && s != telemetry.StepBegin }

// event counts an event, unless it only repeats the outcome of a request or the count of a
// step.
func (m *meters) event(ctx context.Context, ev *telemetry.Event) {
	switch ev.Type {
	case telemetry.EventBegun, telemetry.EventCompleted, telemetry.EventReleased, telemetry.EventReplayed, telemetry.EventRefused,
		telemetry.EventJoined, telemetry.EventWaited:
		return
	}
	m.events.Add(ctx, 1, m.of(labels{route: ev.Route, kind: keyEvent, value: ev.Type.String()}).add...)
}

// swept counts a pass of the sweeper.
func (m *meters) swept(ctx context.Context, p *sweeper.Pass) {
	leads, result := int64(0), "done"
	if p.Leader && !p.Yielded {
		leads = 1
	}
	if p.Err != nil {
		result = "failed"
	}
	m.leads.Record(ctx, leads)
	m.passes.Add(ctx, 1, m.of(labels{kind: keyResult, value: result}).add...)
	for _, r := range []struct {
		name  string
		count int
	}{
		{"deferred", p.Deferred}, {"held", p.Held}, {"applied", p.Applied}, {"released", p.Released}, {"unknown", p.Unknown},
		{"queued", p.Queued}, {"unqueued", p.Unqueued}, {"failed", p.Failed}, {"newer-build", p.Newer}, {"corrupt", p.Corrupt},
	} {
		m.records.Add(ctx, int64(r.count), m.of(labels{kind: keyResult, value: r.name}).add...)
	}
}
