package redis

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"sync"
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

	turn   chan struct{} // holds one while a loss is being accepted
	failed time.Time     // when that last failed; owned by whoever has the turn

	mu     sync.Mutex // held while the witness is asked again
	looked time.Time  // when that was last done
	met    set        // what each shard had when it was
}

func newIncarnations(client goredis.UniversalClient, keys layout, c config) *incarnations {
	return &incarnations{
		client: client, keys: keys, witness: c.witness, log: c.log, pause: c.recheck,
		accepted: c.accepted, turn: make(chan struct{}, 1),
	}
}

// tries bounds how often a race with another process is run again.
const tries = 5

// witnessTimeout bounds a look at the witness that a request waits for.
const witnessTimeout = 500 * time.Millisecond

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
		if want, err = n.fill(ctx); err != nil {
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
		n.acceptAlone(ctx, n.want.Load())
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
			return nil, unavailable("incarnation", err)
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
		return nil, unavailable("incarnation", err)
	}
	for i, cmd := range cmds {
		have[i], _ = cmd.(*goredis.SliceCmd).Val()[0].(string)
	}
	return &have, nil
}

// fill gives an incarnation to shards that have none, and returns all of them,
// those that somebody else gave in the meantime included. Whatever is wiped
// meanwhile is given one again.
func (n *incarnations) fill(ctx context.Context) (*set, error) {
	for range tries {
		have, err := n.read(ctx)
		if err != nil || n.missing(have) == 0 {
			return have, err
		}
		_, err = n.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
			for i, uuid := range have {
				if uuid == "" {
					pipe.SetNX(ctx, n.keys.incarnation(i), newUUID(), 0)
				}
			}
			return nil
		})
		if err != nil {
			return nil, unavailable("incarnation", err)
		}
	}
	return nil, unavailable("incarnation", fmt.Errorf("lost %d times in a row", tries))
}

func (n *incarnations) missing(s *set) int {
	missing := 0
	for _, uuid := range s {
		if uuid == "" {
			missing++
		}
	}
	return missing
}

// lost counts the shards that do not have the incarnation they have to have.
func (n *incarnations) lost(ctx context.Context) (int, error) {
	have, err := n.read(ctx)
	if err != nil {
		return 0, err
	}
	return differing(have, n.want.Load()), nil
}

func differing(a, b *set) int {
	lost := 0
	for i := range a {
		if a[i] != b[i] {
			lost++
		}
	}
	return lost
}

// refresh looks at the witness again, so that a loss accepted elsewhere is
// noticed. It does so once per pause, and at once where a shard has come to an
// incarnation that was not there at the last look: somebody may be accepting.
// One caller looks; the others go on with what is known. A store that accepts by
// itself does not come here: it looks when it has the turn, and a look that was
// made before somebody accepted must not come after it.
func (n *incarnations) refresh(ctx context.Context, shard int, found string) {
	if n.witness == nil || n.accepted != nil || !n.mu.TryLock() {
		return
	}
	defer n.mu.Unlock()
	fresh := found != "" && found != n.met[shard]
	if !fresh && !n.looked.IsZero() && time.Since(n.looked) < n.pause {
		return
	}
	n.looked, n.met[shard] = time.Now(), found
	ctx, cancel := context.WithTimeout(ctx, witnessTimeout)
	defer cancel()
	if want, _, err := n.load(ctx); err == nil && want != nil {
		n.want.Store(want)
	}
}

// accept makes what Redis holds what has to be, with new incarnations where it
// holds none, and returns how many shards that changed. Repeated after a
// failure it goes on where it stopped: an incarnation that Redis holds and the
// witness does not know is taken over.
func (n *incarnations) accept(ctx context.Context) (int, error) {
	if !n.take(ctx) {
		return 0, unavailable("accept", ctx.Err())
	}
	defer n.give()
	return n.acceptNow(ctx)
}

// acceptNow is accept for whoever has the turn.
func (n *incarnations) acceptNow(ctx context.Context) (int, error) {
	for range tries {
		want, version, err := n.load(ctx)
		if err != nil {
			return 0, err
		}
		if want == nil {
			want = n.want.Load()
		}
		have, err := n.fill(ctx)
		if err != nil {
			return 0, err
		}
		lost := differing(have, want)
		if n.witness == nil || lost == 0 && version != 0 {
			n.want.Store(have)
			return lost, nil
		}
		if err = n.store(ctx, have, version); err == nil {
			n.want.Store(have)
			return lost, nil
		}
		if _, now, lerr := n.load(ctx); lerr != nil || now == version {
			return 0, err // not a race that somebody else won
		}
	}
	return 0, fmt.Errorf("tokenstore/redis: witness: changed %d times in a row", tries)
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var u [16]byte
	_, _ = rand.Read(u[:]) // never fails (crypto/rand, since Go 1.24)
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:])
}
