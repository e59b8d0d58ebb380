package held

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// RetryPolicy is explained in package zookeeper, which exports it.
type RetryPolicy struct {
	Base, Max time.Duration
	Attempts  int
}

// Retries counts the attempts of one call.
type Retries struct {
	c     *Client
	pause session.Backoff
	tries int
}

// Retries begins to count.
func (c *Client) Retries() *Retries {
	return &Retries{c: c, pause: session.Backoff{Base: c.Policy.Base, Max: c.Policy.Max}}
}

// Wait pauses before the next attempt: until the client may serve it, and a little longer.
// It is false when there is to be no other attempt.
func (r *Retries) Wait(ctx context.Context) bool {
	r.tries++
	if most := r.c.Policy.Attempts; most > 0 && r.tries >= most || ctx.Err() != nil {
		return false
	}
	select {
	case <-time.After(r.pause.Next()):
	case <-ctx.Done():
		return false
	case <-r.c.Keeper.Context().Done():
		return false
	}
	return r.c.Keeper.AwaitUsable(ctx)
}
