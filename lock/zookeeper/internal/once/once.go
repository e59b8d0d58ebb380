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

// Stamps is how many of these writes a session has under way at a time. Each stamp is an
// ephemeral znode of the session, which the first write with it creates.
const Stamps = 32

// Begin begins a write and goes on with it when its caller has gone. settled is called once with
// the outcome.
//
// After a lost reply the effect itself does not tell whether the write was applied. A missing
// element may never have been offered, or may have been offered and consumed. So the write
// also sets a stamp, a znode that only this session writes to, to a value never used before.
// After a barrier the stamp tells.
//
// The outcome is Applied, Refused, Unsent, or Unknown if the session is over. Created is nil if
// the stamp told. A write that has not been sent when ctx ends is Unsent.
func Begin(ctx context.Context, t *held.Table, settled func(session.Result), ops ...any) {
	t.Keeper.Background.Add()
	run := func() {
		defer t.Keeper.Background.Done()
		settled(write(ctx, t, ops))
	}
	if ctx.Err() != nil || !t.Go(run) {
		run() // ends at once
	}
}

// Write is Begin, except that it waits for the outcome, and returns Unknown if ctx ends before
// that. settled, if not nil, is called with the true outcome in any case.
func Write(ctx context.Context, t *held.Table, settled func(session.Result), ops ...any) session.Result {
	answer := make(chan session.Result, 1)
	Begin(ctx, t, func(r session.Result) {
		if settled != nil {
			settled(r)
		}
		answer <- r
	}, ops...)
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

func write(ctx context.Context, t *held.Table, ops []any) session.Result {
	unsent := func(err error) session.Result { return session.Result{Outcome: session.Unsent, Err: err} }
	cl, err := ClaimStamp(ctx, t)
	if err != nil {
		return unsent(err)
	}
	defer cl.Free()
	value, last := t.Try(), len(ops)
	all := append(slices.Clone(ops), nil)
	for made := true; ; { // the stamp's znode
		if ctx.Err() != nil {
			return unsent(context.Cause(ctx))
		}
		if why := t.Err(); why != nil {
			return unsent(why)
		}
		all[last] = &zk.SetDataRequest{Path: cl.Path(), Data: []byte(value), Version: -1}
		if !made {
			all[last] = t.Ephemeral(cl.Path(), []byte(value))
		}
		r := t.Write(all...)
		switch {
		case r.Outcome == session.Applied:
			r.Created = r.Created[:last]
			return r
		case r.RefusedAt(last, zk.ErrNoNode), r.RefusedAt(last, zk.ErrNodeExists):
			made = !made
			continue
		case r.Outcome == session.Refused:
			return r
		case r.Outcome == session.Ended:
			// The end of the session says nothing of znodes that outlive it.
			return session.Result{Outcome: session.Unknown, Err: r.Err}
		case r.Outcome == session.Unknown:
			n, err := t.Decide(cl.Path(), session.OfNode)
			if err != nil {
				return session.Result{Outcome: session.Unknown, Err: t.Err()}
			}
			if string(n.Data) == value {
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
			// The stamps are beside the session's member.
			cl, other, err := t.Claim(t.Member() + "-" + strconv.Itoa((first+i)%Stamps))
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
