package loss

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Pause and Every are the usual values of [Config].
const (
	Pause = 250 * time.Millisecond
	Every = 2 * time.Second
)

// witnessTimeout bounds a look at the witness that a request waits for.
const witnessTimeout = 500 * time.Millisecond

// tries bounds how often a race with another process is run again.
const tries = 5

// errRaces says that other processes won every try.
var errRaces = errors.New("tokenstore/redis: incarnations: other processes changed them too often")

// Keys names the keys of a shard.
type Keys struct {
	Incarnation func(shard int) string
	Clock       func(shard int) string // the evidence of its clock
	Canary      func(shard int) string
}

// Config configures a [Guard].
type Config struct {
	Client goredis.UniversalClient
	Keys
	Owner
	Witness  Witness // may be nil
	Log      *slog.Logger
	ReadOnly bool // never create or accept an incarnation
	// Accepted is called after the guard has accepted a loss by itself, with the
	// number of lost shards. nil: only an operator accepts losses.
	Accepted func(ctx context.Context, shards int)

	Pause time.Duration // after a look at the witness because of a loss, or a failed acceptance
	Every time.Duration // between two looks at the witness without a loss
	Now   func() time.Time
}

// Guard knows the expected incarnation of each shard. It is safe for concurrent use.
type Guard struct {
	Config
	inc  incarnations
	want atomic.Pointer[set] // the expected incarnations

	// A call has the turn while it reads the witness or accepts a loss. So an answer of
	// the witness from before an acceptance is not used after it. The call with the turn
	// owns the fields below.
	turn   chan struct{}
	reread time.Time // when the next Reread asks the witness
	rested time.Time // when the next call with a loss asks it, or accepts
}

// New returns a guard. Call [Guard.Start] before any other method.
func New(c Config) *Guard {
	return &Guard{
		Config: c, inc: incarnations{c.Client, c.Keys, c.Owner, c.Witness},
		turn: make(chan struct{}, 1), reread: c.Now().Add(c.Every),
	}
}

// Start finds the expected incarnations, and creates them at the very first start. It
// succeeds after a loss of records. The error wraps driver.ErrUnavailable if Redis or the
// witness cannot be reached.
func (g *Guard) Start(ctx context.Context) error {
	if g.Witness == nil && !g.ReadOnly {
		g.warnOfEmptyShards(ctx)
	}
	for range tries {
		told, err := g.inc.load(ctx)
		if err != nil {
			return err
		}
		if told.want != nil {
			g.expect(ctx, told)
			return nil
		}
		var want *set
		saved, jumped := true, 0
		if g.ReadOnly {
			want, err = g.inc.read(ctx)
		} else {
			want, err = g.inc.fill(ctx, new(set), false)
		}
		if err == nil {
			jumped = want.unmark()
		}
		if err == nil && !g.ReadOnly {
			saved, err = g.inc.save(ctx, want, told.version)
		}
		switch {
		case err != nil:
			return err
		case saved && jumped > 0:
			g.expect(ctx, testimony{want: want})
			return nil
		case saved:
			g.want.Store(want)
			return nil
		}
	}
	return errRaces
}

// expect begins with the expected incarnations, and says so if records were lost. After an error
// each call finds out for itself.
func (g *Guard) expect(ctx context.Context, told testimony) {
	g.want.Store(told.want)
	lost, err := g.Lost(ctx)
	if err != nil || lost == 0 {
		return
	}
	log := g.Log.With("lost_shards", lost, "shards", shards, "prefix", g.Prefix, "server", g.Server)
	if told.owner.Server != "" && told.owner.Server != g.Server {
		log.ErrorContext(ctx, "tokenstore/redis: records were lost, or the witness belongs to another service, because it was written for another address; "+
			"then give this service a prefix or a chroot of its own; new keys are refused until the loss is accepted (idemctl store accept)", "witness_server", told.owner.Server)
		return
	}
	log.ErrorContext(ctx, "tokenstore/redis: records were lost; new keys are refused until an operator has looked whether this is the right server, and accepts the loss (idemctl store accept)")
}

// warnOfEmptyShards tells of what only a witness could tell apart.
func (g *Guard) warnOfEmptyShards(ctx context.Context) {
	have, err := g.inc.read(ctx)
	if err != nil {
		return // Start fails, and says so
	}
	empty := 0
	for _, incarnation := range have {
		if incarnation == "" {
			empty++
		}
	}
	if empty > 0 {
		g.Log.WarnContext(ctx, "tokenstore/redis: Redis has no records, as before the first payment; if it has lost them, executed keys run again, because the store has no witness",
			"empty_shards", empty, "shards", shards)
	}
}

// Do runs a call on one shard. The call compares the expected incarnation and reports
// whether the shard had another one. Do runs it again if the loss has been accepted
// meanwhile. Otherwise the error names the method and wraps driver.ErrStoreLost.
func (g *Guard) Do(ctx context.Context, method string, shard int, call func(expected string) (lost bool, err error)) error {
	lost, err := g.retry(ctx, func(want *set) (bool, error) { return call(want[shard]) })
	if lost && err == nil {
		err = fmt.Errorf("tokenstore/redis: %s: shard %s: %w", method, redisserver.ShardName(shard), driver.ErrStoreLost)
	}
	return err
}

// Lost counts the shards that have lost their records. It accepts the loss first if
// the guard does so by itself. The error wraps driver.ErrUnavailable.
func (g *Guard) Lost(ctx context.Context) (n int, err error) {
	return g.LostBy(ctx, func(want []string) (int, error) {
		have, err := g.inc.read(ctx)
		if err != nil {
			return 0, err
		}
		return differing(have, (*set)(want)), nil
	})
}

// LostBy counts the lost shards as [Guard.Lost] does, by a call that gets the expected
// incarnation of each shard.
func (g *Guard) LostBy(ctx context.Context, count func(expected []string) (int, error)) (n int, err error) {
	_, err = g.retry(ctx, func(want *set) (bool, error) {
		n, err = count(want[:])
		return n > 0, err
	})
	return n, err
}

// retry runs a call until it notices no loss, or the expected incarnations stay the same.
func (g *Guard) retry(ctx context.Context, call func(want *set) (lost bool, err error)) (lost bool, err error) {
	for range tries { // records may be lost again meanwhile
		want := g.want.Load()
		if lost, err = call(want); err != nil || !lost {
			return lost, err
		}
		if g.Accepted != nil {
			g.acceptAlone(ctx, want)
		} else { // another process may have accepted the loss
			g.ask(ctx, &g.rested, g.Pause)
		}
		if *g.want.Load() == *want {
			break
		}
	}
	return lost, nil
}

// Reread asks the witness once per interval. It notices when the witness has moved on to
// another Redis, although this one lost nothing.
func (g *Guard) Reread(ctx context.Context) { g.ask(ctx, &g.reread, g.Every) }

// ask asks the witness for the expected incarnations, unless it is too early. It waits
// for witnessTimeout at most. Other calls go on meanwhile with the known incarnations.
// These also stay if the witness does not answer.
func (g *Guard) ask(ctx context.Context, due *time.Time, pause time.Duration) {
	if g.Witness == nil {
		return
	}
	select {
	case g.turn <- struct{}{}:
	default:
		return
	}
	defer func() { <-g.turn }()
	if g.Now().Before(*due) {
		return
	}
	limited, cancel := context.WithTimeout(ctx, witnessTimeout)
	defer cancel()
	if told, err := g.inc.load(limited); err == nil && told.want != nil {
		g.want.Store(told.want)
	}
	if ctx.Err() == nil { // if the caller gave up, the next call asks
		*due = g.Now().Add(pause)
	}
}

// Marker returns a function that marks shards whose clock jumped ahead. It marks only shards
// that have the incarnations that are expected now, so it may be called late.
func (g *Guard) Marker() func(ctx context.Context, shards []int) error {
	want := g.want.Load()
	return func(ctx context.Context, shards []int) error {
		pipe := g.Client.Pipeline()
		for _, i := range shards {
			if want[i] != "" {
				mark.Eval(ctx, pipe, []string{g.Incarnation(i)}, want[i], jumpMark+want[i])
			}
		}
		if pipe.Len() == 0 {
			return nil
		}
		_, err := pipe.Exec(ctx)
		return err
	}
}
