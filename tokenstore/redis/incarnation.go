package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// incarnations knows which incarnation each shard has to have. Redis holds what
// there is, the witness what has to be; without a witness, what this process saw
// first has to be.
type incarnations struct {
	client  goredis.UniversalClient
	keys    layout
	witness Witness // may be nil
	log     *slog.Logger
	pause   time.Duration

	accepted func(ctx context.Context, shards int) // nil: an operator accepts losses

	want atomic.Pointer[set]

	start time.Time     // what due counts from
	every time.Duration // how often a running store asks the witness
	due   atomic.Int64  // when it does so next, in ns since start

	// turn holds one while a loss is being accepted or the witness is asked
	// again: an answer from before an acceptance must not come after it. Whoever
	// has it owns what follows.
	turn   chan struct{}
	failed time.Time // when a loss could last not be accepted
	looked time.Time // when the witness was last asked because of a loss
	met    set       // what each shard had when it was
}

func newIncarnations(client goredis.UniversalClient, keys layout, c config) *incarnations {
	n := &incarnations{
		client: client, keys: keys, witness: c.witness, log: c.log, pause: c.recheck,
		accepted: c.accepted, turn: make(chan struct{}, 1), start: time.Now(), every: c.reread,
	}
	n.due.Store(int64(n.every))
	return n
}

// tries bounds how often a race with another process is run again.
const tries = 5

// expected is the incarnation that a shard has to have.
func (n *incarnations) expected(shard int) string { return n.want.Load()[shard] }

// establish finds out what the incarnations have to be, and creates them at the
// very first start.
func (n *incarnations) establish(ctx context.Context) error {
	for range tries {
		want, version, err := n.load(ctx)
		if err != nil {
			return err
		}
		if want != nil {
			n.want.Store(want)
			n.found(ctx)
			return nil
		}
		if want, _, err = n.fill(ctx, nil, false); err != nil {
			return err
		}
		if n.witness == nil {
			n.want.Store(want)
			return nil
		}
		if err = n.store(ctx, want, version); err == nil {
			n.want.Store(want)
			return nil
		}
		if got, _, lerr := n.load(ctx); lerr != nil || got == nil {
			return err // not a race that somebody else won
		}
	}
	return fmt.Errorf("tokenstore/redis: witness: changed %d times in a row", tries)
}

// found looks for a loss from before this process started.
func (n *incarnations) found(ctx context.Context) {
	lost, err := n.lost(ctx)
	switch {
	case err != nil || lost == 0:
	case n.accepted != nil:
		n.acceptAlone(ctx, anyShard, n.want.Load())
	default:
		n.log.ErrorContext(ctx, "tokenstore/redis: records were lost; new keys are refused until the loss is accepted",
			"lost_shards", lost, "shards", Shards)
	}
}

// load reads the witness; nil where it has nothing, or where there is none.
func (n *incarnations) load(ctx context.Context) (*set, int64, error) {
	if n.witness == nil {
		return nil, 0, nil
	}
	data, version, err := n.witness.Load(ctx)
	if err != nil {
		return nil, 0, unavailable("witness", err)
	}
	if data == nil {
		return nil, version, nil
	}
	want, err := unmarshalSet(data)
	return want, version, err
}

// store writes the witness.
func (n *incarnations) store(ctx context.Context, want *set, version int64) error {
	data, err := want.marshal()
	if err != nil {
		return err
	}
	if err := n.witness.Save(ctx, data, version); err != nil {
		return unavailable("witness", err)
	}
	return nil
}

// read returns what Redis holds, in one round trip per server.
func (n *incarnations) read(ctx context.Context) (*set, error) {
	var have set
	if _, cluster := n.client.(*goredis.ClusterClient); !cluster {
		keys := make([]string, Shards)
		for i := range keys {
			keys[i] = n.keys.incarnation(i)
		}
		values, err := n.client.MGet(ctx, keys...).Result()
		if err != nil {
			return nil, n.unavailable(ctx, err)
		}
		for i, v := range values {
			have[i], _ = v.(string)
		}
		return &have, nil
	}
	cmds, err := n.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		for i := range Shards {
			pipe.MGet(ctx, n.keys.incarnation(i)) // unlike GET no error where there is none
		}
		return nil
	})
	if err != nil {
		return nil, n.unavailable(ctx, err)
	}
	for i, cmd := range cmds {
		have[i], _ = cmd.(*goredis.SliceCmd).Val()[0].(string)
	}
	return &have, nil
}

func (n *incarnations) unavailable(ctx context.Context, err error) error {
	askAnew(ctx, n.client)
	return unavailable("incarnation", err)
}

// lost counts the shards that do not have the incarnation they have to have.
func (n *incarnations) lost(ctx context.Context) (int, error) {
	have, err := n.read(ctx)
	if err != nil {
		return 0, err
	}
	return differing(have, n.want.Load()), nil
}

// differing counts the shards that have another incarnation than they have to
// have. A store that only reads may want none in particular.
func differing(have, want *set) int {
	lost := 0
	for i := range have {
		if want[i] != "" && have[i] != want[i] {
			lost++
		}
	}
	return lost
}
