package server

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/idemkeeper/idemkeeper/idem"
)

const (
	openTimeout = time.Second
	openLimit   = 1_000 // at most so many are counted: reading metrics stays cheap
)

// openRecords counts the records whose attempt is open, and those that this build
// cannot read, as the store shows them to every instance. It leaves its metrics
// out while the store does not answer.
type openRecords struct {
	store                     idem.Store
	count, oldest, unreadable *prometheus.Desc
}

func newOpenRecords(store idem.Store) *openRecords {
	return &openRecords{
		store: store,
		count: prometheus.NewDesc("idemkeeper_open_records",
			"Records whose outcome is not settled, at most 1000 of a state, over all instances of the store.", []string{"state"}, nil),
		oldest: prometheus.NewDesc("idemkeeper_open_oldest_seconds",
			"How long ago the oldest of them began, by this instance's clock.", []string{"state"}, nil),
		unreadable: prometheus.NewDesc("idemkeeper_unreadable_records",
			"Records among them that this instance cannot read: a newer build wrote them, or they are corrupt.", []string{"reason"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (o *openRecords) Describe(ch chan<- *prometheus.Desc) {
	ch <- o.count
	ch <- o.oldest
	ch <- o.unreadable
}

// Collect implements [prometheus.Collector].
func (o *openRecords) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	newer, corrupt := 0, 0
	for _, state := range []idem.State{idem.StatePending, idem.StateUnknown} {
		count, oldest := 0, time.Time{}
		newer, corrupt = 0, 0 // they are listed for each state
		for q := (idem.OpenQuery{State: state, Limit: openLimit}); ; {
			page, err := o.store.Open(ctx, q)
			if err != nil {
				return
			}
			for _, r := range page.Records {
				switch {
				case errors.Is(r.Err, idem.ErrNewerRecord):
					newer++
				case r.Err != nil:
					corrupt++
				default:
					if count++; count == 1 {
						oldest = r.Record.Started
					}
				}
			}
			if q.After = page.Next; q.After == nil || count+newer+corrupt >= openLimit {
				break
			}
		}
		age := 0.0
		if count > 0 {
			age = max(0, time.Since(oldest).Seconds())
		}
		ch <- prometheus.MustNewConstMetric(o.count, prometheus.GaugeValue, float64(min(count, openLimit)), state.String())
		ch <- prometheus.MustNewConstMetric(o.oldest, prometheus.GaugeValue, age, state.String())
	}
	ch <- prometheus.MustNewConstMetric(o.unreadable, prometheus.GaugeValue, float64(newer), "newer-build")
	ch <- prometheus.MustNewConstMetric(o.unreadable, prometheus.GaugeValue, float64(corrupt), "corrupt")
}
