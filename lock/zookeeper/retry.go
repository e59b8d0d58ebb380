package zookeeper

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// RetryPolicy is exponential back-off with jitter: before each try it waits for
// a random time between half of a pause and the whole of it, and the pause
// doubles from Base up to Max.
type RetryPolicy struct {
	Base time.Duration // default: 100 ms
	Max  time.Duration // default: 5 s

	// Attempts bounds how often a blocking call takes a place in line before it
	// fails with idem.ErrUnavailable; a lock that is merely held uses none up.
	// It does not bound the attempts at a new session, which end with Close.
	// Default: as long as the call's context lasts.
	Attempts int
}

func (p *RetryPolicy) setDefaults() error {
	if p.Base < 0 || p.Max < 0 || p.Attempts < 0 {
		return errors.New("zookeeper: retry policy has a negative value")
	}
	defaultTo(&p.Base, 100*time.Millisecond)
	defaultTo(&p.Max, max(p.Base, 5*time.Second))
	if p.Max < p.Base {
		return errors.New("zookeeper: retry policy has a Max below its Base")
	}
	return nil
}

// backoff is how far a policy has come.
type backoff struct {
	policy RetryPolicy
	last   time.Duration // pause before this one; negative: there is none yet, and none is due
}

func (b *backoff) next() time.Duration {
	if b.last < 0 {
		b.last = 0
		return 0
	}
	b.last = min(max(2*b.last, b.policy.Base), b.policy.Max)
	return b.last/2 + rand.N(b.last/2+1)
}

// retry counts the attempts of one call.
type retry struct {
	backoff
	tries int
}

func (p RetryPolicy) start() *retry { return &retry{backoff: backoff{policy: p}} }

// wait pauses before the next attempt: until the client may serve it, and a
// little longer. It is false when there is to be none.
func (r *retry) wait(ctx context.Context, c *Client) bool {
	r.tries++
	if r.policy.Attempts > 0 && r.tries >= r.policy.Attempts || ctx.Err() != nil {
		return false
	}
	select {
	case <-time.After(r.next()):
	case <-ctx.Done():
		return false
	case <-c.ctx.Done():
		return false
	}
	return c.awaitUsable(ctx)
}

// awaitUsable waits until callers can be served. It is false when ctx ends or
// the client is closed before.
func (c *Client) awaitUsable(ctx context.Context) bool {
	for {
		c.mu.Lock()
		s, changed := c.current, c.changed
		c.mu.Unlock()
		var within <-chan struct{}
		if s != nil {
			s.mu.Lock()
			trouble := s.trouble(true)
			within = s.changed
			s.mu.Unlock()
			if trouble == nil {
				return true
			}
		}
		select {
		case <-changed:
		case <-within:
		case <-ctx.Done():
			return false
		case <-c.ctx.Done():
			return false
		}
	}
}
