package loss

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
)

//go:embed *.lua
var files embed.FS

var (
	swap = redisscript.Load(files, "swap.lua")
	mark = redisscript.Load(files, "mark.lua")
)

// acceptTimeout bounds how long a call that noticed a loss spends on accepting it.
const acceptTimeout = 2 * time.Second

// errForeign says that the guard may not accept a loss by itself.
var errForeign = errors.New("tokenstore/redis: the server has incarnations that the witness does not know; " +
	"check the address; an operator has to accept the loss")

// Accept gives the expected incarnations to Redis and to the witness, with new ones for
// all shards that lack theirs. It returns the number of these shards. After an error
// it can be repeated and goes on from there. The error wraps driver.ErrUnavailable if
// Redis or the witness cannot be reached.
func (g *Guard) Accept(ctx context.Context) (int, error) {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, fmt.Errorf("tokenstore/redis: accept: %w: %w", driver.ErrUnavailable, ctx.Err())
	}
	defer func() { <-g.turn }()
	return g.accept(ctx, false)
}

// acceptAlone accepts a loss without an operator. The caller noticed it while it expected
// the incarnations in was. Other callers with the same loss wait for the first of them.
func (g *Guard) acceptAlone(ctx context.Context, was *set) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	lost, err := g.acceptOnce(ctx, was)
	if err != nil {
		g.Log.ErrorContext(ctx, "tokenstore/redis: records were lost, and the loss could not be accepted", "err", err)
	}
	if lost > 0 {
		g.Log.WarnContext(ctx, "tokenstore/redis: records were lost, and the loss was accepted", "lost_shards", lost, "shards", shards)
		g.Accepted(ctx, lost)
	}
}

// acceptOnce accepts nothing if the expected incarnations have changed since, or if an
// acceptance failed a moment ago.
func (g *Guard) acceptOnce(ctx context.Context, was *set) (int, error) {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return 0, nil // the waiting call is over
	}
	defer func() { <-g.turn }()
	if *g.want.Load() != *was || g.Now().Before(g.rested) {
		return 0, nil
	}
	lost, err := g.accept(ctx, true)
	if err != nil {
		g.rested = g.Now().Add(g.Pause)
	}
	return lost, err
}

// accept works for the call with the turn. Without an operator (alone) it changes
// nothing if any shard has a foreign incarnation.
func (g *Guard) accept(ctx context.Context, alone bool) (lost int, err error) {
	refused := int64(-1) // version of the witness
	for range tries {
		told, err := g.inc.load(ctx)
		if err != nil {
			return 0, err
		}
		want, version := cmp.Or(told.want, g.want.Load()), told.version
		have, err := g.inc.fill(ctx, want, alone)
		if errors.Is(err, errForeign) && version != refused {
			refused = version // others may have accepted later losses after we read the witness
			continue
		}
		if err != nil {
			return 0, err
		}
		lost, saved := differing(have, want), true
		if lost > 0 || version == 0 {
			if saved, err = g.inc.save(ctx, have, version); err != nil {
				return 0, err
			}
		}
		if saved {
			g.want.Store(have)
			return lost, nil
		}
	}
	return 0, errRaces
}

// fill creates an incarnation for each shard without one and for each shard whose clock jumped,
// as a successor of the expected one, and returns the incarnations of all shards. A shard without an expectation keeps
// its incarnation. Foreign incarnations are replaced only if there is a witness to tell
// the other processes, and either an operator has decided or the incarnation was
// overtaken.
func (n *incarnations) fill(ctx context.Context, want *set, alone bool) (*set, error) {
	for range tries { // Redis may be wiped again meanwhile
		have, err := n.read(ctx)
		if err != nil {
			return nil, err
		}
		pipe := n.client.Pipeline()
		for i, incarnation := range have {
			switch {
			case incarnation == "":
				pipe.SetNX(ctx, n.Incarnation(i), successor(want[i]), 0)
			case want[i] != "" && marked(incarnation) && (!alone || !foreign(unmarked(incarnation), want[i])):
				n.replace(ctx, pipe, i, incarnation, unmarked(incarnation))
			case want[i] == "" || !foreign(incarnation, want[i]):
			case n.witness != nil && (!alone || overtaken(incarnation, want[i])):
				n.replace(ctx, pipe, i, incarnation, want[i])
			case alone:
				return nil, errForeign
			}
		}
		if pipe.Len() == 0 {
			return have, nil
		}
		if _, err = pipe.Exec(ctx); err != nil {
			return nil, n.redisFailed(ctx, err)
		}
	}
	return nil, n.redisFailed(ctx, errRaces)
}

// replace puts a successor of an incarnation in the place of another one.
func (n *incarnations) replace(ctx context.Context, pipe goredis.Pipeliner, shard int, have, of string) {
	swap.Eval(ctx, pipe, []string{n.Incarnation(shard), n.Clock(shard), n.Canary(shard)}, have, successor(of))
}
