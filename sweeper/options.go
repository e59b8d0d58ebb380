package sweeper

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Option configures a [Sweeper]. A nil Option is ignored.
type Option func(*config)

type config struct {
	lead       Lead
	inbox      Inbox
	observers  []func(context.Context, Pass)
	chores     []*chore
	interval   time.Duration
	minAge     time.Duration
	maxBackoff time.Duration
	page       int // records that are read at a time
	workers    int // records that are settled at a time
}

func newConfig(opts []Option) (config, error) {
	c := config{lead: alwaysLead,
		interval: 2 * time.Second, minAge: 2 * time.Second, maxBackoff: 5 * time.Minute, page: 100, workers: 8}
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	switch {
	case c.lead == nil:
		return c, errors.New("sweeper: WithLead has no Lead, or a ByLock without a locker")
	case c.interval <= 0:
		return c, fmt.Errorf("sweeper: WithInterval(%v): it must be more than 0", c.interval)
	case c.minAge < 0:
		return c, fmt.Errorf("sweeper: WithMinAge(%v): it must be 0 or more", c.minAge)
	case c.maxBackoff <= 0:
		return c, fmt.Errorf("sweeper: WithMaxBackoff(%v): it must be more than 0", c.maxBackoff)
	}
	for _, ch := range c.chores {
		switch {
		case ch.every <= 0:
			return c, fmt.Errorf("sweeper: WithChore every %v: it must be more than 0", ch.every)
		case ch.run == nil:
			return c, fmt.Errorf("sweeper: WithChore every %v has no function", ch.every)
		}
	}
	return c, nil
}

// WithLead makes the sweeper work only while this instance leads. By default
// every instance sweeps. [New] refuses a nil Lead.
func WithLead(l Lead) Option { return func(c *config) { c.lead = l } }

// WithInbox receives the attempts for a person to settle. By default only the store
// and the passes show them.
func WithInbox(in Inbox) Option { return func(c *config) { c.inbox = in } }

// WithObserver reports every pass to fn. A failed chore or election is a Pass with
// nothing but Err and Leader. fn must be safe for concurrent use and must not
// block. Several observers are called in their order. A nil fn is ignored.
func WithObserver(fn func(context.Context, Pass)) Option {
	return func(c *config) {
		if fn != nil {
			c.observers = append(c.observers, fn)
		}
	}
}

// observe reports a pass to all observers.
func (c *config) observe(ctx context.Context, p Pass) {
	for _, fn := range c.observers {
		_ = guarded("an observer", func() error {
			fn(ctx, p)
			return nil
		})
	}
}

// WithChore has the leader run fn beside the sweep, for example to remove old
// markers. fn runs when the leader is first elected, and again after each pause.
// Its context ends with the leadership, and the leader gives its office up only
// after fn has returned. While fn runs or is due, the office is not yielded to newer
// builds.
func WithChore(every time.Duration, fn func(context.Context) error) Option {
	return func(c *config) { c.chores = append(c.chores, &chore{every: every, run: fn}) }
}

// WithInterval is the pause between two passes, 2 s by default. A pass that took
// d is followed by a pause of nine times d, up to 5 s, if that is longer.
func WithInterval(d time.Duration) Option { return func(c *config) { c.interval = d } }

// WithMinAge leaves attempts alone that began less than d ago by the store's
// clock, 2 s by default. It saves the work of finding a live holder.
func WithMinAge(d time.Duration) Option { return func(c *config) { c.minAge = d } }

// WithMaxBackoff bounds the pause before an attempt in doubt is looked at again,
// 5 min by default.
func WithMaxBackoff(d time.Duration) Option { return func(c *config) { c.maxBackoff = d } }
