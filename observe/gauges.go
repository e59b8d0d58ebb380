package observe

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

const (
	openTimeout = time.Second
	openLimit   = 1_000 // stop counting here, to keep reading metrics cheap
	routeLimit  = 100   // routes with doubts that have a series of their own
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

// watched are the engines of an observer and their stores, each once.
type watched struct {
	mu      sync.Mutex
	engines []telemetry.Engine
	stores  []driver.Store
}

// add reports whether e is the first engine.
func (w *watched) add(e telemetry.Engine, s driver.Store) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.engines = append(w.engines, e)
	if !reflect.TypeOf(s).Comparable() || !slices.Contains(w.stores, s) {
		w.stores = append(w.stores, s)
	}
	return len(w.engines) == 1
}

func (w *watched) all() ([]telemetry.Engine, []driver.Store) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.engines), slices.Clone(w.stores)
}

// watch makes the gauges that ask the engines and their stores whenever they are read. A store
// that does not answer is left out, and without any other one its gauges are missing.
func (m *meters) watch(engine telemetry.Engine, store driver.Store) {
	if !m.watched.add(engine, store) {
		return
	}
	running := must(m.meter.Int64ObservableGauge("idemkeeper.running_executions", metric.WithUnit("{execution}"),
		metric.WithDescription("Handlers that run in this process. Each holds its key.")))
	longest := must(m.meter.Float64ObservableGauge("idemkeeper.running_oldest", metric.WithUnit("s"),
		metric.WithDescription("How long the oldest of them has been running, 0 if there are no handlers.")))
	open := must(m.meter.Int64ObservableGauge("idemkeeper.open_records", metric.WithUnit("{record}"),
		metric.WithDescription("Records without a settled outcome, at most 1000 of a state, over all instances of the store.")))
	doubts := must(m.meter.Int64ObservableGauge("idemkeeper.doubts", metric.WithUnit("{record}"),
		metric.WithDescription("Records whose outcome is in doubt by route, the 1000 oldest of a store, over all its instances.")))
	oldest := must(m.meter.Float64ObservableGauge("idemkeeper.open_oldest", metric.WithUnit("s"),
		metric.WithDescription("Age of the oldest of them, by this instance's clock.")))
	unreadable := must(m.meter.Int64ObservableGauge("idemkeeper.unreadable_records", metric.WithUnit("{record}"),
		metric.WithDescription("Open records that this instance cannot read, because a newer build wrote them or because they are corrupt.")))
	unlisted := must(m.meter.Int64ObservableGauge("idemkeeper.unlisted_stores", metric.WithUnit("{store}"),
		metric.WithDescription("Token stores whose open records could not be listed, or not all of them, because the store or a part of it does not answer.")))
	must(m.meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		engines, _ := m.watched.all()
		count, longestRun := 0, time.Duration(0)
		for _, e := range engines {
			r := e.Running()
			count, longestRun = count+r.Count, max(longestRun, r.Oldest)
		}
		to.ObserveInt64(running, int64(count))
		to.ObserveFloat64(longest, longestRun.Seconds())
		return nil
	}, running, longest))
	must(m.meter.RegisterCallback(func(ctx context.Context, to metric.Observer) error {
		_, stores := m.watched.all()
		pending, unknown, failed := listAllOpen(ctx, stores)
		to.ObserveInt64(unlisted, int64(failed))
		if pending == nil {
			return nil
		}
		for state, found := range map[driver.State]*openRecords{driver.StatePending: pending, driver.StateUnknown: unknown} {
			of := keyState.String(state.String())
			for i, age := range ages {
				to.ObserveInt64(open, found.byAge[i], metric.WithAttributes(of, keyAge.String(age.name)))
			}
			to.ObserveFloat64(oldest, found.oldest.Seconds(), metric.WithAttributes(of))
		}
		for _, route := range m.routes() { // a rule sees an increase only from a value that was there
			unknown.of(route)
		}
		for route, byAge := range unknown.byRoute {
			for i, age := range ages {
				to.ObserveInt64(doubts, byAge[i], metric.WithAttributes(keyRoute.String(route), keyAge.String(age.name)))
			}
		}
		// Both listings show the same unreadable records.
		to.ObserveInt64(unreadable, unknown.newer, because("newer-build"))
		to.ObserveInt64(unreadable, unknown.corrupt, because("corrupt"))
		return nil
	}, open, doubts, oldest, unreadable, unlisted))
}

// listAllOpen adds up the open records of all stores, and of all parts of them that answer. They are nil if
// nothing answers. failed is how many stores did not list everything.
func listAllOpen(ctx context.Context, stores []driver.Store) (pending, unknown *openRecords, failed int) {
	for _, store := range stores {
		p, u, err := listOpenOf(ctx, store)
		if err != nil {
			failed++
		}
		if err != nil && p.none() && u.none() {
			continue
		}
		if pending == nil {
			pending, unknown = new(openRecords), new(openRecords)
		}
		pending.join(p)
		unknown.join(u)
	}
	return pending, unknown, failed
}

func listOpenOf(ctx context.Context, store driver.Store) (pending, unknown *openRecords, err error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	pending, err = listOpen(ctx, store, driver.StatePending)
	unknown, also := listOpen(ctx, store, driver.StateUnknown)
	return pending, unknown, cmp.Or(err, also)
}

func because(name string) metric.ObserveOption {
	return metric.WithAttributeSet(attribute.NewSet(keyReason.String(name)))
}

// openRecords counts the open records of a state.
type openRecords struct {
	byAge          [5]int64 // as ages
	byRoute        map[string]*[5]int64
	count          int
	oldest         time.Duration
	newer, corrupt int64
}

// listOpen counts what the parts of the store that answer have. The error is that of the others.
func listOpen(ctx context.Context, store driver.Store, state driver.State) (found *openRecords, failed error) {
	found, seen := &openRecords{}, 0
	for q := (driver.OpenQuery{State: state, Limit: openLimit}); ; {
		page, err := store.ListOpen(ctx, q)
		failed = cmp.Or(failed, err)
		for i := range page.Records {
			found.add(&page.Records[i])
		}
		seen += len(page.Records)
		if q.After = page.Next; q.After == nil || seen >= openLimit {
			return found, failed
		}
	}
}

// of are the numbers of a route. Routes beyond the limit are counted together.
func (o *openRecords) of(route string) *[5]int64 {
	if o.byRoute == nil {
		o.byRoute = make(map[string]*[5]int64)
	}
	if o.byRoute[route] == nil && len(o.byRoute) >= routeLimit {
		route = "_OTHER"
	}
	if o.byRoute[route] == nil {
		o.byRoute[route] = new([5]int64)
	}
	return o.byRoute[route]
}

// none reports whether no record was listed.
func (o *openRecords) none() bool { return o.count+int(o.newer+o.corrupt) == 0 }

// join adds the records of another store.
func (o *openRecords) join(other *openRecords) {
	for i := range o.byAge {
		o.byAge[i] += other.byAge[i]
	}
	for route, byAge := range other.byRoute {
		mine := o.of(route)
		for i := range byAge {
			mine[i] += byAge[i]
		}
	}
	o.oldest = max(o.oldest, other.oldest)
	o.newer += other.newer
	o.corrupt += other.corrupt
}

func (o *openRecords) add(r *driver.OpenRecord) {
	switch {
	case errors.Is(r.Err, driver.ErrNewerRecord):
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
			o.of(r.Record.Route)[i]++
			return
		}
	}
}
