package redis

import (
	"context"
	"time"
)

// acceptTimeout bounds how long a call that noticed a loss spends on accepting
// it.
const acceptTimeout = 2 * time.Second

// WithLossAcceptance makes the store accept a loss of its records by itself, as
// [Store.AcceptLoss] does, and call f with the number of shards that were lost;
// f may be nil. The call that noticed the loss goes on, and so do all others.
// [New] accepts a loss that it finds. By default an operator decides.
//
// It is for deployments where something else remembers what was executed:
// durable markers in ZooKeeper. Without them every execution whose record was
// lost can be repeated, unasked.
//
// Several processes may notice at once. With a witness one of them accepts and
// calls f; without one, each does for itself. A process that stops, or loses the
// witness's answer, between accepting and calling f does not call it. While a
// loss cannot be accepted, calls fail with idem.ErrStoreLost, and another try is
// made every quarter of a second.
func WithLossAcceptance(f func(ctx context.Context, shards int)) Option {
	return func(c *config) {
		if f == nil {
			f = func(context.Context, int) {}
		}
		c.accepted = f
	}
}

// acceptAlone accepts the loss that a call has noticed while was had to be
// there, where the store is to do so. Whether it could is seen in want. Calls
// that notice the same loss wait for the first one.
func (n *incarnations) acceptAlone(ctx context.Context, was *set) {
	if n.accepted == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	lost, err := n.acceptOnce(ctx, was)
	if err != nil {
		n.log.ErrorContext(ctx, "tokenstore/redis: records were lost, and the loss could not be accepted", "error", err)
	}
	if lost > 0 {
		n.log.WarnContext(ctx, "tokenstore/redis: records were lost, and the loss was accepted", "lost_shards", lost, "shards", Shards)
		n.accepted(ctx, lost)
	}
}

// acceptOnce is accept, unless somebody has accepted since was had to be there,
// or failed to a moment ago.
func (n *incarnations) acceptOnce(ctx context.Context, was *set) (int, error) {
	if !n.take(ctx) {
		return 0, nil // the call that waits is over
	}
	defer n.give()
	if *n.want.Load() != *was || !n.failed.IsZero() && time.Since(n.failed) < n.pause {
		return 0, nil
	}
	lost, err := n.acceptNow(ctx)
	n.failed = time.Time{}
	if err != nil {
		n.failed = time.Now()
	}
	return lost, err
}

// take waits for the right to accept, and give gives it back.
func (n *incarnations) take(ctx context.Context) bool {
	select {
	case n.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (n *incarnations) give() { <-n.turn }
