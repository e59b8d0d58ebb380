package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
)

// WithReplicas makes Begin succeed only once at least n replicas of the record's
// primary have acknowledged the pending record (WAIT), and wait no longer than
// timeout for them; n is 1 or more, timeout at most half of the client's read
// time-out. No replica is waited for by default.
//
// Where too few acknowledge in time, Begin returns an error that wraps
// idem.ErrUnavailable, and Ping does so while too few are connected, unless
// [WithReplicaShortfall] says otherwise. It costs no further round trip from
// here, but one from the primary to the replicas. Issue and Settle do not wait:
// what they write and a failover loses is asked for or saved again, or leaves a
// pending record.
func WithReplicas(n int, timeout time.Duration) Option {
	return func(c *config) { c.replicas, c.replicaTimeout, c.replicate = n, timeout, true }
}

// WithReplicaShortfall makes a Begin whose record too few replicas acknowledged
// call f and succeed. f is called by Begin, with its context, and by many at
// once. None by default: Begin is refused. Without [WithReplicas] f is never
// called.
func WithReplicaShortfall(f func(ctx context.Context, got, want int)) Option {
	return func(c *config) { c.shortfall = f }
}

// replication makes Begins wait for replicas. A nil one makes none wait.
type replication struct {
	want      int
	timeout   time.Duration
	shortfall func(ctx context.Context, got, want int) // nil: refuse
	gates     []gate                                   // one per shard of a cluster, else one
}

// newReplication returns nil where no replica is to be waited for.
func newReplication(c config, client goredis.UniversalClient) (*replication, error) {
	if !c.replicate {
		return nil, nil //nolint:nilnil // none is wanted
	}
	var limit time.Duration
	gates := 1
	switch client := client.(type) {
	case *goredis.ClusterClient:
		limit, gates = client.Options().ReadTimeout, Shards
	case *goredis.Client:
		limit = client.Options().ReadTimeout
	}
	switch {
	case c.replicas < 1:
		return nil, fmt.Errorf("tokenstore/redis: %d replicas: want 1 or more", c.replicas)
	case c.replicaTimeout < time.Millisecond:
		return nil, fmt.Errorf("tokenstore/redis: replicas are given %v: want 1ms or more", c.replicaTimeout)
	case limit > 0 && c.replicaTimeout > limit/2:
		return nil, fmt.Errorf("tokenstore/redis: replicas are given %v, and the client reads for %v: want at most half of that",
			c.replicaTimeout, limit)
	}
	return &replication{want: c.replicas, timeout: c.replicaTimeout, shortfall: c.shortfall, gates: make([]gate, gates)}, nil
}

func (p *replication) gate(shard int) *gate { return &p.gates[shard%len(p.gates)] }

// judge says what becomes of a Begin that began and that got replicas have
// acknowledged.
func (p *replication) judge(ctx context.Context, got int) error {
	if got >= p.want {
		return nil
	}
	if p.shortfall != nil {
		p.shortfall(ctx, got, p.want)
		return nil
	}
	return fmt.Errorf("tokenstore/redis: begin: %d of %d replicas acknowledged: %w", got, p.want, idem.ErrUnavailable)
}

// gate remembers that replicas fell short at the last Begin. As long as they
// do, one Begin at a time waits for them with full patience. The others ask
// with a tenth of it: every one that waits holds a connection, and the pool has
// to serve replays and finished executions meanwhile.
type gate struct {
	short atomic.Bool
	probe atomic.Bool
}

const hurry = 10

// enter returns for how long a Begin may wait; leave is called when it has.
func (g *gate) enter(full time.Duration) (patience time.Duration, leave func()) {
	switch {
	case !g.short.Load():
		return full, func() {}
	case g.probe.CompareAndSwap(false, true):
		return full, func() { g.probe.Store(false) }
	}
	return full / hurry, func() {}
}

// within is the time-out of a WAIT: patience, but less than what the context
// has left, so that the answer still gets back. It is never 0, which Redis would
// take as for ever.
func within(ctx context.Context, patience time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		patience = min(patience, left-min(left/4, 100*time.Millisecond))
	}
	return max(patience, time.Millisecond)
}

// runBegin calls begin.lua, and waits for the replicas where that is wanted.
func (s *Store) runBegin(ctx context.Context, shard int, keys []string, args ...any) (reply, error) {
	p := s.replicas
	if p == nil {
		return s.run(ctx, "begin", beginScript, keys, args...)
	}
	g := p.gate(shard)
	patience, leave := g.enter(p.timeout)
	defer leave()
	r, acks, err := s.runAndWait(ctx, "begin", beginScript, p.want, patience, keys, args...)
	if err != nil || r.verdict != "begun" {
		return r, err // nothing was written that replicas could tell of
	}
	got, err := acks.Int()
	if err != nil {
		return reply{}, unavailable("begin: wait for replicas", err)
	}
	g.short.Store(got < p.want)
	return r, p.judge(ctx, got)
}

// redirects bounds how often a script follows its shard to another primary.
const redirects = 4

// runAndWait calls a script and, in the same round trip and on the same
// connection, WAIT, which asks for this connection's last write. It goes to the
// primary's own client: a cluster's would send the WAIT, which has no key,
// anywhere.
func (s *Store) runAndWait(ctx context.Context, method string, script *goredis.Script, want int, patience time.Duration,
	keys []string, args ...any,
) (reply, *goredis.Cmd, error) {
	for try := 0; ; try++ {
		node, err := s.primary(ctx, keys[0])
		if err != nil {
			return reply{}, nil, unavailable(method, err)
		}
		cmd, acks := runPipelined(ctx, node, script.EvalSha, want, patience, keys, args)
		if goredis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			cmd, acks = runPipelined(ctx, node, script.Eval, want, patience, keys, args)
		}
		if err = cmd.Err(); err == nil {
			r, err := parseReply(method, cmd)
			return r, acks, err
		}
		if !s.cluster || !follow(err, try) || ctx.Err() != nil {
			return reply{}, nil, unavailable(method, err)
		}
		if rerr := s.reload(ctx); rerr != nil {
			return reply{}, nil, unavailable(method, errors.Join(err, rerr))
		}
	}
}

type evaluator func(ctx context.Context, c goredis.Scripter, keys []string, args ...any) *goredis.Cmd

func runPipelined(ctx context.Context, node *goredis.Client, eval evaluator, want int, patience time.Duration,
	keys []string, args []any,
) (cmd, acks *goredis.Cmd) {
	pipe := node.Pipeline()
	cmd = eval(ctx, pipe, keys, args...)
	acks = pipe.Do(ctx, "wait", want, within(ctx, patience).Milliseconds())
	_, _ = pipe.Exec(ctx) // each command has its own error
	return cmd, acks
}

// follow reports whether a script that failed on one node of a cluster may have
// to go to another one. It may run twice. A slot that is on its way to another
// primary (ASK, TRYAGAIN) is not followed there: it is unavailable for so long.
func follow(err error, try int) bool {
	if _, moved := goredis.IsMovedError(err); moved || goredis.IsReadOnlyError(err) || goredis.IsClusterDownError(err) {
		return try < redirects
	}
	var answered goredis.Error
	return !errors.As(err, &answered) && try == 0 // the connection broke
}
