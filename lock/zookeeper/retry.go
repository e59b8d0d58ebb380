package zookeeper

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// RetryPolicy is exponential back-off with jitter. Before each try it waits for a random
// time between half of a pause and the whole of it, and the pause doubles from Base up to
// Max.
type RetryPolicy struct {
	Base time.Duration // default: 100 ms
	Max  time.Duration // default: 5 s

	// Attempts bounds how often a blocking call takes a place in line before it fails
	// with idem.ErrUnavailable. Waiting for a held lock uses no attempt up. It does
	// not bound the attempts at a new session, which end with Close. Default: as long
	// as the call's context lasts.
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

// retry counts the attempts of one call.
type retry struct {
	policy RetryPolicy
	pause  session.Backoff
	tries  int
}

func (p RetryPolicy) start() *retry {
	return &retry{policy: p, pause: session.Backoff{Base: p.Base, Max: p.Max}}
}

// wait pauses before the next attempt: until the client may serve it, and a little
// longer. It is false when there is to be no other attempt.
func (r *retry) wait(ctx context.Context, c *Client) bool {
	r.tries++
	if r.policy.Attempts > 0 && r.tries >= r.policy.Attempts || ctx.Err() != nil {
		return false
	}
	select {
	case <-time.After(r.pause.Next()):
	case <-ctx.Done():
		return false
	case <-c.keeper.Context().Done():
		return false
	}
	return c.keeper.AwaitUsable(ctx)
}
