package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemkeeper/idemkeeper/idem"
)

const (
	openTimeout = time.Second
	openLimit   = 1_000 // at most so many are counted: reading metrics stays cheap
)

// openRecords counts the records whose attempt is open, as the store shows
// them to every instance. It leaves its metrics out while the store does not
// answer.
type openRecords struct {
	store         idem.Store
	count, oldest *prometheus.Desc
}

func newOpenRecords(store idem.Store) *openRecords {
	return &openRecords{
		store: store,
		count: prometheus.NewDesc("idemkeeper_open_records",
			"Records whose outcome is not settled, at most 1000 of a state, over all instances of the store.", []string{"state"}, nil),
		oldest: prometheus.NewDesc("idemkeeper_open_oldest_seconds",
			"How long ago the oldest of them began, by this instance's clock.", []string{"state"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (o *openRecords) Describe(ch chan<- *prometheus.Desc) {
	ch <- o.count
	ch <- o.oldest
}

// Collect implements [prometheus.Collector].
func (o *openRecords) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	for _, state := range []idem.State{idem.StatePending, idem.StateUnknown} {
		list, err := o.store.Open(ctx, idem.OpenQuery{State: state, Limit: openLimit})
		if err != nil {
			return
		}
		age := 0.0
		if len(list) > 0 {
			age = max(0, time.Since(list[0].Record.Started).Seconds())
		}
		ch <- prometheus.MustNewConstMetric(o.count, prometheus.GaugeValue, float64(len(list)), state.String())
		ch <- prometheus.MustNewConstMetric(o.oldest, prometheus.GaugeValue, age, state.String())
	}
}
