package redisstore

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
// It is only for deployments where durable markers in ZooKeeper remember what
// was executed, and where every instance has left them for longer than clients
// repeat a request: keys that were completed by an instance without markers, or
// before there were any, run again, unasked.
//
// A wrong address looks like a loss. What is accepted is only that shards hold no
// incarnation. Where one holds an incarnation that nobody made for this store,
// nothing is accepted, and calls fail with idem.ErrStoreLost until an operator
// has looked. An empty server at a wrong address cannot be told from one that
// lost everything: it is accepted, and with a witness the instances at the right
// one notice within 2.5 s, and begin nothing until an operator has corrected the
// address and accepted the loss there. While the witness does not answer them
// they go on.
//
// Several processes may notice at once. With a witness one of them accepts and
// calls f; without one, each does for itself, and one that has missed a loss
// before this one has to be restarted. A process that stops, or loses the
// witness's answer, between accepting and calling f does not call it; what it
// began is brought to its end by any other one. While a loss cannot be accepted,
// calls fail with idem.ErrStoreLost, and another try is made every quarter of a
// second.
func WithLossAcceptance(f func(ctx context.Context, shards int)) Option {
	return func(c *config) {
		if f == nil {
			f = func(context.Context, int) {}
		}
		c.accepted = f
	}
}

// anyShard stands for all of them.
const anyShard = -1

// acceptAlone accepts the loss that a call has noticed on a shard while was had
// to be there, where the store is to do so. Whether it could is seen in want.
// Calls that notice the same loss wait for the first one.
func (n *incarnations) acceptAlone(ctx context.Context, shard int, was *set) {
	if n.accepted == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	lost, err := n.acceptOnce(ctx, shard, was)
	if err != nil {
		n.log.ErrorContext(ctx, "tokenstore/redis: records were lost, and the loss could not be accepted", "error", err)
	}
	if lost > 0 {
		n.log.WarnContext(ctx, "tokenstore/redis: records were lost, and the loss was accepted", "lost_shards", lost, "shards", Shards)
		n.accepted(ctx, lost)
	}
}

// acceptOnce is accept, unless somebody has accepted the shard's loss since was
// had to be there, or failed to a moment ago. That another shard's was accepted
// meanwhile says nothing about this one.
func (n *incarnations) acceptOnce(ctx context.Context, shard int, was *set) (int, error) {
	if !n.take(ctx) {
		return 0, nil // the call that waits is over
	}
	defer n.give()
	want := n.want.Load()
	over := *want != *was
	if shard != anyShard {
		over = want[shard] != was[shard]
	}
	if over || !n.failed.IsZero() && time.Since(n.failed) < n.pause {
		return 0, nil
	}
	lost, err := n.acceptNow(ctx, true)
	n.failed = time.Time{}
	if err != nil {
		n.failed = time.Now()
	}
	return lost, err
}
