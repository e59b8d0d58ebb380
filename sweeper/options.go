package sweeper

import (
	"context"
	"errors"
	"time"
)

// Option configures a [Sweeper]. A nil Option is ignored.
type Option func(*config)

type config struct {
	lead       Lead
	inbox      Inbox
	observer   func(context.Context, Pass)
	chores     []*chore
	interval   time.Duration
	minAge     time.Duration
	page       int
	workers    int
	maxBackoff time.Duration
}

func defaultConfig() config {
	return config{
		lead: alone, observer: func(context.Context, Pass) {},
		interval: 2 * time.Second, minAge: 2 * time.Second, page: 100, workers: 8, maxBackoff: 5 * time.Minute,
	}
}

func (c *config) validate() error {
	if c.interval <= 0 || c.maxBackoff <= 0 || c.minAge < 0 || c.page < 1 || c.workers < 1 {
		return errors.New("sweeper: interval, back-off, page and workers have to be positive")
	}
	for _, ch := range c.chores {
		if ch.every <= 0 {
			return errors.New("sweeper: the interval of a chore has to be positive")
		}
	}
	return nil
}

// WithLead makes the sweeper work only while this instance leads. Without it
// every instance sweeps, which is right where there is one.
func WithLead(l Lead) Option {
	return func(c *config) {
		if l != nil {
			c.lead = l
		}
	}
}

// WithInbox is where attempts go that only a person can settle. None by
// default: they are in the store, in the metrics, and in no queue.
func WithInbox(in Inbox) Option { return func(c *config) { c.inbox = in } }

// WithObserver reports every pass to fn, and every failure of a chore, as a Pass
// of which nothing but Err is set. It must be safe for concurrent use and must
// not block. None by default.
func WithObserver(fn func(context.Context, Pass)) Option {
	return func(c *config) {
		if fn != nil {
			c.observer = fn
		}
	}
}

// WithChore has the leader run fn now and then beside the sweep, such as the
// removal of old markers: at once when it is elected for the first time, and then
// after a pause. The context of fn ends with the leadership, which is given up when
// fn has returned. While fn runs, the office is not yielded to newer builds.
func WithChore(every time.Duration, fn func(context.Context) error) Option {
	return func(c *config) {
		if fn != nil {
			c.chores = append(c.chores, &chore{every: every, run: fn})
		}
	}
}

// WithInterval is the pause between two passes, 2 s by default. A pass that
// takes long is followed by a longer one: nine times what it took.
func WithInterval(d time.Duration) Option { return func(c *config) { c.interval = d } }

// WithMinAge leaves alone what began less than d ago, by the store's clock: 2 s
// by default. It only saves the work of finding out that a holder is alive.
func WithMinAge(d time.Duration) Option { return func(c *config) { c.minAge = d } }

// WithPage is how many records are read at a time, 100 by default.
func WithPage(n int) Option { return func(c *config) { c.page = n } }

// WithWorkers is how many records are settled at a time, 8 by default. It is
// also how many resolvers may hang before no more are asked.
func WithWorkers(n int) Option { return func(c *config) { c.workers = n } }

// WithMaxBackoff bounds the pause before an attempt is looked at again that
// could not be settled, 5 min by default.
func WithMaxBackoff(d time.Duration) Option { return func(c *config) { c.maxBackoff = d } }
