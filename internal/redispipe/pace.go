package redispipe

import "time"

// These were tried with round trips of 60 µs to 5 ms.
const (
	// far is the round trip from which a call does not wait for the pipelines under way.
	far = 700 * time.Microsecond
	// interval is the mean time between the starts of pipelines that do not wait for an end.
	interval = 200 * time.Microsecond
	// burst is the number of pipelines that may start at one moment.
	burst = 8
	// memory is how long the fastest pipeline counts at least. It is forgotten after twice that.
	memory = 15 * time.Second
)

// pace decides whether a further pipeline may start while others are under way. The fastest pipeline of
// the last time is taken for the round trip, because the others waited for a processor too. It needs no timer,
// which would wake up too late in an idle process.
type pace struct {
	fastest, before time.Duration // of this period and of the one before; 0 if there was no pipeline
	period          time.Time     // start of this period
	due             time.Time     // the next start if all starts were [interval] apart
}

// took notes the time of a pipeline.
func (p *pace) took(now time.Time, d time.Duration) {
	switch {
	case now.Sub(p.period) >= memory:
		p.before, p.fastest, p.period = p.fastest, d, now
	case d < p.fastest:
		p.fastest = d
	}
}

// far reports whether a round trip takes long. It does not before the first one.
func (p *pace) far() bool {
	trip := p.fastest
	if p.before > 0 {
		trip = min(trip, p.before)
	}
	return trip >= far
}

// another reports whether a further pipeline may start now, and counts it.
func (p *pace) another(now time.Time) bool {
	if !p.far() || p.due.Sub(now) > (burst-1)*interval {
		return false
	}
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(interval)
	return true
}
