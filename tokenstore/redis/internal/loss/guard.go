package loss

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
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

// Config configures a [Guard].
type Config struct {
	Client   goredis.UniversalClient
	Key      func(shard int) string // names the key of a shard's incarnation
	Witness  Witness                // may be nil
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
	want atomic.Pointer[set]   // the expected incarnations
	due  *redisserver.Interval // of Reread

	// A call has the turn while it reads the witness or accepts a loss. An answer of
	// the witness from before an acceptance must not be used after it. The call that
	// has the turn owns the fields below.
	turn   turn
	rested time.Time // end of the pause
	met    set       // the incarnations at the last look because of a loss
}

// New returns a guard. Call [Guard.Start] before any other method.
func New(c Config) *Guard {
	return &Guard{
		Config: c, inc: incarnations{c.Client, c.Key, c.Witness},
		due: redisserver.NewInterval(c.Every, c.Now), turn: make(turn, 1),
	}
}

// Start finds the expected incarnations, and creates them at the very first start. It
// succeeds on a Redis that lost its records. The error wraps idem.ErrUnavailable if
// Redis or the witness cannot be reached.
func (g *Guard) Start(ctx context.Context) error {
	for range tries {
		want, version, err := g.inc.load(ctx)
		if err != nil {
			return err
		}
		if want != nil {
			g.want.Store(want)
			g.noticeAtStart(ctx)
			return nil
		}
		if g.ReadOnly {
			want, err = g.inc.read(ctx)
			g.want.Store(want)
			return err
		}
		if want, _, err = g.inc.fill(ctx, new(set), false); err != nil {
			return err
		}
		winner, err := g.inc.save(ctx, want, version)
		if err != nil {
			return err
		}
		if winner == nil {
			g.want.Store(want)
			return nil
		}
	}
	return errRaces
}

// noticeAtStart looks for a loss from before this process started.
func (g *Guard) noticeAtStart(ctx context.Context) {
	have, err := g.inc.read(ctx)
	if err != nil {
		return // each call finds out for itself
	}
	want := g.want.Load()
	lost := differing(have, want)
	switch {
	case lost == 0:
	case g.Accepted != nil:
		g.acceptAlone(ctx, anyShard, want)
	default:
		g.Log.ErrorContext(ctx, "tokenstore/redis: records were lost; new keys are refused until the loss is accepted",
			"lost_shards", lost, "shards", shards)
	}
}

// Do runs a call on one shard that compares the expected incarnation. The call reports
// whether the shard had another one, and which. Do runs it again if the loss has been
// accepted meanwhile. Otherwise the error names the method and wraps idem.ErrStoreLost.
func (g *Guard) Do(ctx context.Context, method string, shard int, call func(expected string) (found string, lost bool, err error)) error {
	lost, err := g.retry(ctx, shard, func(want *set) (string, bool, error) { return call(want[shard]) })
	if lost && err == nil {
		err = fmt.Errorf("tokenstore/redis: %s: shard %s: %w", method, redisserver.ShardName(shard), idem.ErrStoreLost)
	}
	return err
}

// Lost counts the shards that have lost their records. It accepts the loss first if
// the guard does so by itself. The error wraps idem.ErrUnavailable.
func (g *Guard) Lost(ctx context.Context) (n int, err error) {
	_, err = g.retry(ctx, anyShard, func(want *set) (string, bool, error) {
		have, err := g.inc.read(ctx)
		if err != nil {
			return "", false, err
		}
		n = differing(have, want)
		return "", n > 0, nil
	})
	return n, err
}

// anyShard stands for all of them.
const anyShard = -1

// retry runs a call until it notices no loss, or the expected incarnation of its shard
// stays the same.
func (g *Guard) retry(ctx context.Context, shard int, call func(want *set) (found string, lost bool, err error)) (lost bool, err error) {
	for range tries { // records may be lost again meanwhile
		want := g.want.Load()
		var found string
		if found, lost, err = call(want); err != nil || !lost {
			return lost, err
		}
		if g.Accepted != nil {
			g.acceptAlone(ctx, shard, want)
		} else {
			g.catchUp(ctx, shard, found)
		}
		if !g.changed(shard, want) {
			break
		}
	}
	return lost, nil
}

// changed reports whether the expected incarnation of a shard is another one than it
// was.
func (g *Guard) changed(shard int, was *set) bool {
	want := g.want.Load()
	if shard == anyShard {
		return *want != *was
	}
	return want[shard] != was[shard]
}

// catchUp asks the witness whether another process has accepted the loss. It asks once
// per pause, and at once if the shard has an incarnation that it did not have at the
// last look. While one call asks, the others go on with the known incarnations.
func (g *Guard) catchUp(ctx context.Context, shard int, found string) {
	if g.Witness == nil || !g.turn.try() {
		return
	}
	defer g.turn.end()
	fresh := found != "" && found != g.met[shard]
	if !fresh && g.Now().Before(g.rested) {
		return
	}
	g.rested = g.Now().Add(g.Pause)
	if shard != anyShard {
		g.met[shard] = found
	}
	_ = g.ask(ctx) // without an answer the known incarnations stay
}

// Reread asks the witness once per interval. It notices that this Redis, which lost
// nothing, is no longer the one that the witness knows. One call per interval asks. It
// waits for witnessTimeout at most. Without an answer the known incarnations stay.
func (g *Guard) Reread(ctx context.Context) {
	if g.Witness == nil || !g.due.Due() || !g.turn.try() {
		return
	}
	defer g.turn.end()
	if err := g.ask(ctx); err != nil && ctx.Err() != nil {
		g.due.End() // the caller gave up, so the next call asks
	}
}

// ask reads the witness for the call that has the turn.
func (g *Guard) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, witnessTimeout)
	defer cancel()
	want, _, err := g.inc.load(ctx)
	if err == nil && want != nil {
		g.want.Store(want)
	}
	return err
}

// turn is a mutex whose lock can be given up: by a context, or at once.
type turn chan struct{}

func (t turn) wait(ctx context.Context) bool {
	select {
	case t <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t turn) try() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t turn) end() { <-t }
