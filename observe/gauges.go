package observe

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/idemkeeper/idemkeeper/idem"
)

const (
	openTimeout = time.Second
	openLimit   = 1_000 // stop counting here, to keep reading metrics cheap
)

// ages are the classes of the age of an open record.
var ages = []struct {
	under time.Duration
	name  string
}{
	{time.Minute, "under-1m"},
	{10 * time.Minute, "under-10m"},
	{time.Hour, "under-1h"},
	{24 * time.Hour, "under-1d"},
	{1<<63 - 1, "over-1d"},
}

// watch makes the gauges that ask an engine and its store whenever they are read. While the
// store does not answer, its gauges are missing.
func (m *meters) watch(engine *idem.Engine, store idem.Store) {
	running := must(m.meter.Int64ObservableGauge("idemkeeper.running_executions", metric.WithUnit("{execution}"),
		metric.WithDescription("Handlers that run in this process. Each holds its key.")))
	longest := must(m.meter.Float64ObservableGauge("idemkeeper.running_oldest", metric.WithUnit("s"),
		metric.WithDescription("How long the oldest of them has been running, 0 if there are no handlers.")))
	open := must(m.meter.Int64ObservableGauge("idemkeeper.open_records", metric.WithUnit("{record}"),
		metric.WithDescription("Records without a settled outcome, at most 1000 of a state, over all instances of the store.")))
	oldest := must(m.meter.Float64ObservableGauge("idemkeeper.open_oldest", metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest of them, by this instance's clock.")))
	unreadable := must(m.meter.Int64ObservableGauge("idemkeeper.unreadable_records", metric.WithUnit("{record}"),
		metric.WithDescription("Open records that this instance cannot read, because a newer build wrote them or because they are corrupt.")))
	must(m.meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		r := engine.Running()
		to.ObserveInt64(running, int64(r.Count))
		to.ObserveFloat64(longest, r.Oldest.Seconds())
		return nil
	}, running, longest))
	must(m.meter.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		ctx, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		var last *openRecords
		for _, state := range []idem.State{idem.StatePending, idem.StateUnknown} {
			found, err := listOpen(ctx, store, state)
			if err != nil {
				return nil // a store that is away has events of its own
			}
			of := keyState.String(state.String())
			for i, age := range ages {
				to.ObserveInt64(open, found.byAge[i], metric.WithAttributes(of, keyAge.String(age.name)))
			}
			to.ObserveFloat64(oldest, found.oldest.Seconds(), metric.WithAttributes(of))
			last = found
		}
		// Both listings show the same unreadable records.
		to.ObserveInt64(unreadable, last.newer, because("newer-build"))
		to.ObserveInt64(unreadable, last.corrupt, because("corrupt"))
		return nil
	}, open, oldest, unreadable))
}

func because(name string) metric.ObserveOption {
	return metric.WithAttributeSet(attribute.NewSet(keyReason.String(name)))
}

// openRecords counts the open records of a state.
type openRecords struct {
	byAge          [5]int64 // as ages
	count          int
	oldest         time.Duration
	newer, corrupt int64
}

func listOpen(ctx context.Context, store idem.Store, state idem.State) (*openRecords, error) {
	found, seen := &openRecords{}, 0
	for q := (idem.OpenQuery{State: state, Limit: openLimit}); ; {
		page, err := store.ListOpen(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page.Records {
			found.add(&page.Records[i])
		}
		seen += len(page.Records)
		if q.After = page.Next; q.After == nil || seen >= openLimit {
			return found, nil
		}
	}
}

func (o *openRecords) add(r *idem.OpenRecord) {
	switch {
	case errors.Is(r.Err, idem.ErrNewerRecord):
		o.newer++
		return
	case r.Err != nil:
		o.corrupt++
		return
	case o.count >= openLimit:
		return
	}
	o.count++
	age := max(0, time.Since(r.Record.Started))
	o.oldest = max(o.oldest, age)
	for i := range ages {
		if age < ages[i].under {
			o.byAge[i]++
			return
		}
	}
}
