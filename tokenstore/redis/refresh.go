package redisstore

import (
	"context"
	"time"
)

// witnessTimeout bounds a look at the witness that a request waits for.
const witnessTimeout = 500 * time.Millisecond

// rereadEvery is how often a store in use asks the witness whether its
// incarnations are still those that have to be.
const rereadEvery = 2 * time.Second

// reread asks the witness every now and then, so that a store whose Redis lost
// nothing, and is no more the one that the witness knows, does not go on for
// ever. One Begin per interval asks, for witnessTimeout at most; the others go
// on with what is known, and cost one atomic read. Where the witness does not
// answer, what is known stays.
func (n *incarnations) reread(ctx context.Context) {
	if n.witness == nil {
		return
	}
	due, now := n.due.Load(), int64(time.Since(n.start))
	if now < due || !n.due.CompareAndSwap(due, now+int64(n.every)) {
		return
	}
	if !n.tryTake() {
		return // somebody asks already
	}
	defer n.give()
	if err := n.ask(ctx); err != nil && ctx.Err() != nil {
		n.due.Store(now) // it was this Begin that ended: let the next one ask
	}
}

// refresh looks at the witness again, so that a loss accepted elsewhere is
// noticed. It does so once per pause, and at once where a shard has come to an
// incarnation that was not there at the last look: somebody may be accepting.
// One caller looks; the others go on with what is known. A store that accepts by
// itself does not come here: it looks when it accepts.
func (n *incarnations) refresh(ctx context.Context, shard int, found string) {
	if n.witness == nil || n.accepted != nil || !n.tryTake() {
		return
	}
	defer n.give()
	fresh := found != "" && found != n.met[shard]
	if !fresh && !n.looked.IsZero() && time.Since(n.looked) < n.pause {
		return
	}
	n.looked, n.met[shard] = time.Now(), found
	_ = n.ask(ctx) // what is known stays
}

// ask asks the witness what has to be, for whoever has the turn.
func (n *incarnations) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, witnessTimeout)
	defer cancel()
	want, _, err := n.load(ctx)
	if err == nil && want != nil {
		n.want.Store(want)
	}
	return err
}

// take waits for the turn, tryTake does not, and give gives it back.
func (n *incarnations) take(ctx context.Context) bool {
	select {
	case n.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (n *incarnations) tryTake() bool {
	select {
	case n.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

func (n *incarnations) give() { <-n.turn }
