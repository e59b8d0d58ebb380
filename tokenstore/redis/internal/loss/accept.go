package loss

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
)

//go:embed swap.lua
var files embed.FS

var swap = redisscript.Load(files, "swap.lua")

// acceptTimeout bounds how long a call that noticed a loss spends on accepting it.
const acceptTimeout = 2 * time.Second

// errForeign says that the guard may not accept a loss by itself.
var errForeign = errors.New("tokenstore/redis: the server has incarnations that the witness does not know; " +
	"check the address; an operator has to accept the loss")

// Accept gives the expected incarnations to Redis and to the witness, with new ones for
// all shards that lack theirs. It returns the number of these shards. After an error
// it can be repeated and goes on from there. The error wraps idem.ErrUnavailable if
// Redis or the witness cannot be reached.
func (g *Guard) Accept(ctx context.Context) (int, error) {
	if !g.turn.wait(ctx) {
		return 0, fmt.Errorf("tokenstore/redis: accept: %w: %w", idem.ErrUnavailable, ctx.Err())
	}
	defer g.turn.end()
	return g.accept(ctx, false)
}

// acceptAlone accepts a loss without an operator. The call noticed it on a shard that
// was expected to have the incarnation in was. Calls that notice the same loss wait for
// the first of them. The outcome shows in the expected incarnations.
func (g *Guard) acceptAlone(ctx context.Context, shard int, was *set) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	lost, err := g.acceptOnce(ctx, shard, was)
	if err != nil {
		g.Log.ErrorContext(ctx, "tokenstore/redis: records were lost, and the loss could not be accepted", "err", err)
	}
	if lost > 0 {
		g.Log.WarnContext(ctx, "tokenstore/redis: records were lost, and the loss was accepted", "lost_shards", lost, "shards", shards)
		g.Accepted(ctx, lost)
	}
}

// acceptOnce accepts nothing if the shard's loss has been accepted since, or if an
// acceptance failed a moment ago.
func (g *Guard) acceptOnce(ctx context.Context, shard int, was *set) (int, error) {
	if !g.turn.wait(ctx) {
		return 0, nil // the waiting call is over
	}
	defer g.turn.end()
	if g.changed(shard, was) || g.Now().Before(g.rested) {
		return 0, nil
	}
	lost, err := g.accept(ctx, true)
	if err != nil {
		g.rested = g.Now().Add(g.Pause)
	}
	return lost, err
}

// accept works for the call that has the turn. Without an operator (alone) it changes
// nothing if any shard has a foreign incarnation.
func (g *Guard) accept(ctx context.Context, alone bool) (lost int, err error) {
	var refused error
	for range tries {
		want, version, err := g.inc.load(ctx)
		if err != nil {
			return 0, err
		}
		want = cmp.Or(want, g.want.Load())
		refused = nil
		if alone {
			have, err := g.inc.read(ctx)
			if err != nil {
				return 0, err
			}
			if anyForeign(have, want) {
				refused = errForeign
				letLoserForget(ctx)
				continue
			}
		}
		have, made, err := g.inc.fill(ctx, want, !alone && g.Witness != nil)
		if err != nil {
			return 0, err
		}
		if alone && anyForeign(have, want) {
			continue // it appeared since the look above
		}
		lost := differing(have, want)
		if lost > 0 || version == 0 {
			winner, err := g.inc.save(ctx, have, version)
			if err != nil {
				return 0, err
			}
			if winner != nil {
				if err := g.inc.forget(ctx, made, winner); err != nil {
					return 0, err
				}
				continue
			}
		}
		g.want.Store(have)
		return lost, nil
	}
	return 0, cmp.Or(refused, errRaces)
}

// fill creates an incarnation for each shard without one, as a successor of the
// expected one. With replace it overwrites foreign incarnations too. It returns the
// incarnations of all shards, and those among them that it created.
func (n *incarnations) fill(ctx context.Context, want *set, replace bool) (have, made *set, err error) {
	made = new(set)
	for range tries { // Redis may be wiped again meanwhile
		have, err := n.read(ctx)
		if err != nil {
			return nil, nil, err
		}
		pipe := n.client.Pipeline()
		for i, incarnation := range have {
			switch {
			case incarnation == "":
				made[i] = successor(want[i])
				pipe.SetNX(ctx, n.key(i), made[i], 0)
			case replace && foreign(incarnation, want[i]):
				made[i] = successor(want[i])
				swap.Eval(ctx, pipe, []string{n.key(i)}, incarnation, made[i])
			}
		}
		if pipe.Len() == 0 {
			return have, made, nil
		}
		if _, err = pipe.Exec(ctx); err != nil {
			return nil, nil, n.redisFailed(ctx, err)
		}
	}
	return nil, nil, n.redisFailed(ctx, fmt.Errorf("lost %d times in a row", tries))
}

// forget removes the created incarnations that do not follow the winner's. No process
// could complete their acceptance, and an operator would have to.
func (n *incarnations) forget(ctx context.Context, made, winner *set) error {
	pipe := n.client.Pipeline()
	for i, m := range made {
		if m != "" && m != winner[i] && !follows(m, winner[i]) {
			swap.Eval(ctx, pipe, []string{n.key(i)}, m, "")
		}
	}
	if pipe.Len() == 0 {
		return nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return n.redisFailed(ctx, err)
	}
	return nil
}

// letLoserForget waits while a process that lost a race removes its incarnations.
func letLoserForget(ctx context.Context) {
	select {
	case <-time.After(25 * time.Millisecond):
	case <-ctx.Done():
	}
}
