// Package once makes writes whose effect outlives the session, exactly once.
package once

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Stamps is how many of these writes a session has under way at a time. Each has an
// ephemeral znode of the session, which is made when it is first needed.
const Stamps = 32

// write makes the write.
//
// After a lost reply the effect itself does not tell whether it was applied. An element that
// is not there may never have been offered, or been offered and consumed. An element that
// has gone may have been removed by another client. So the write also sets a stamp, a znode
// that only this session writes to, to a value never used before. After a barrier the stamp
// tells.
//
// The outcome is Applied (Created is nil if the stamp told), Refused, Unsent, which includes
// that ctx ended before the write was sent, or Unknown: the session is over. ctx does not
// interrupt a write that has been sent.
func write(ctx context.Context, t *held.Table, ops []any) session.Result {
	unsent := func(err error) session.Result { return session.Result{Outcome: session.Unsent, Err: err} }
	cl, err := ClaimStamp(ctx, t)
	if err != nil {
		return unsent(err)
	}
	defer cl.Free()
	stamp := t.Try()
	all := append(slices.Clone(ops), &zk.SetDataRequest{Path: cl.Path(), Data: []byte(stamp), Version: -1})
	for {
		if ctx.Err() != nil {
			return unsent(context.Cause(ctx))
		}
		if why := t.Err(); why != nil {
			return unsent(why)
		}
		r := t.Write(all...)
		switch {
		case r.Outcome == session.Applied:
			r.Created = r.Created[:len(ops)]
			return r
		case r.RefusedAt(len(ops), zk.ErrNoNode):
			if err := MakeStamp(t, cl.Path()); err != nil {
				return unsent(err)
			}
			continue
		case r.Outcome == session.Refused:
			return r
		case r.Outcome == session.Ended:
			// The outcome is known for a znode that ends with the session, but not for
			// these.
			return session.Result{Outcome: session.Unknown, Err: r.Err}
		case r.Outcome == session.Unknown:
			n, err := t.Decide(cl.Path(), session.OfNode)
			if err != nil {
				return session.Result{Outcome: session.Unknown, Err: t.Err()}
			}
			if string(n.Data) == stamp {
				return session.Result{Outcome: session.Applied}
			}
		}
		if err := t.Retry(); err != nil {
			return unsent(err)
		}
	}
}

// ClaimStamp takes a stamp, and waits for one if all are in use.
func ClaimStamp(ctx context.Context, t *held.Table) (*held.Claim, error) {
	for {
		if err := t.AwaitUp(ctx); err != nil {
			return nil, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
		}
		first := rand.N(Stamps)
		var busy *held.Claim
		for i := range Stamps {
			cl, other, err := t.Claim(stampPath(t, (first+i)%Stamps))
			if cl != nil || err != nil {
				return cl, err
			}
			busy = other
		}
		if err := t.Await(ctx, busy.Freed()); err != nil {
			return nil, err
		}
	}
}

// stampPath is where stamp no. i is: beside the session's member.
func stampPath(t *held.Table, i int) string { return t.Member() + "-" + strconv.Itoa(i) }

// MakeStamp creates the znode. Doing it twice does no harm.
func MakeStamp(t *held.Table, path string) error {
	for {
		r := t.Write(t.Ephemeral(path, nil))
		switch {
		case r.Outcome == session.Applied, r.RefusedBy(zk.ErrNodeExists):
			return nil
		case r.Outcome == session.Ended, r.Outcome == session.Refused:
			return fmt.Errorf("zookeeper: create %s: %w", path, r.Err)
		}
		if err := t.Retry(); err != nil {
			return err
		}
	}
}

// Write makes a write exactly once. The caller may leave when ctx ends. The outcome is
// Unknown for it then, and a goroutine goes on with the write. settled, if not nil, is
// called with the true outcome in any case.
func Write(ctx context.Context, t *held.Table, settled func(session.Result), ops ...any) session.Result {
	if settled == nil {
		settled = func(session.Result) {}
	}
	answer := make(chan session.Result, 1)
	t.Keeper.Background.Add()
	run := func() {
		defer t.Keeper.Background.Done()
		r := write(ctx, t, ops)
		settled(r)
		answer <- r
	}
	if ctx.Err() != nil || !t.Go(run) {
		run() // ends at once
	}
	select {
	case r := <-answer:
		return r
	case <-ctx.Done():
	}
	select {
	case r := <-answer:
		return r
	default:
		return session.Result{Outcome: session.Unknown, Err: context.Cause(ctx)}
	}
}
