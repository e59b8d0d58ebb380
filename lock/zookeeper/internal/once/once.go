// Package once makes writes whose effect outlives the session, exactly once.
package once

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Stamps bounds the writes of this kind that a session has under way. Each stamp is an
// ephemeral znode of the session. The first write with the stamp creates it.
const Stamps = 32

// Begin begins a write, and goes on with it after the caller has gone. It calls settled once
// with the outcome.
//
// After a lost reply the effect itself does not show the outcome. A missing element may never
// have been offered, or may have been offered and consumed. So the write also sets a stamp to a
// value never used before. Only this session writes to the stamp. After a barrier the value of
// the stamp shows the outcome.
//
// The outcome is Applied, Refused, Unsent, or Unknown if the session is over. Created is nil if
// the outcome was read from the stamp. If ctx ends before the write is sent, the outcome is
// Unsent.
func Begin(ctx context.Context, t *held.Table, settled func(session.Result), ops ...any) {
	t.Client.Keeper.Background.Add()
	run := func() {
		defer t.Client.Keeper.Background.Done()
		settled(write(ctx, t, ops))
	}
	if ctx.Err() != nil || !t.Session.Status.Go(run) {
		run() // ends at once
	}
}

// Write is Begin, except that it waits for the outcome. If ctx ends first, it returns Unknown.
// If settled is not nil, it gets the true outcome in any case.
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
	value, last := t.Client.Try(), len(ops)
	all := append(slices.Clone(ops), nil)
	for made := true; ; { // the stamp's znode
		if ctx.Err() != nil {
			return unsent(context.Cause(ctx))
		}
		if why := t.Session.Status.Err(); why != nil {
			return unsent(why)
		}
		all[last] = &zk.SetDataRequest{Path: cl.Path(), Data: []byte(value), Version: -1}
		if !made {
			all[last] = t.Client.Ephemeral(cl.Path(), []byte(value))
		}
		r := t.Session.Writes.Do(all...)
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
			// The end of the session says nothing of persistent znodes.
			return session.Result{Outcome: session.Unknown, Err: r.Err}
		case r.Outcome == session.Unknown:
			n, err := t.Session.Reads.Decide(cl.Path(), session.OfNode)
			if err != nil {
				return session.Result{Outcome: session.Unknown, Err: t.Session.Status.Err()}
			}
			if string(n.Data) == value {
				return session.Result{Outcome: session.Applied}
			}
		}
		if err := t.Session.Status.Retry(); err != nil {
			return unsent(err)
		}
	}
}

// ClaimStamp takes a stamp, and waits for one if all are in use.
func ClaimStamp(ctx context.Context, t *held.Table) (*held.Claim, error) {
	for {
		if err := t.Session.Status.AwaitUp(ctx); err != nil {
			return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
		}
		first := rand.N(Stamps)
		var busy *held.Claim
		for i := range Stamps {
			// The stamps are beside the session's member.
			cl, other := t.Reserve(t.Session.Member() + "-" + strconv.Itoa((first+i)%Stamps))
			if cl != nil {
				return cl, nil
			}
			busy = other
		}
		if err := t.Session.Status.Await(ctx, busy.Freed()); err != nil {
			return nil, err
		}
	}
}
