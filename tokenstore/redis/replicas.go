package redisstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// replication makes each Begin wait for replicas. With a nil one no Begin waits.
type replication struct {
	client  goredis.UniversalClient
	want    int
	timeout time.Duration
	gates   [Shards]gate // one server uses the first
}

// newReplication returns nil unless [WithReplicas] was given.
func newReplication(c config, client goredis.UniversalClient) (*replication, error) {
	if !c.replicate {
		return nil, nil //nolint:nilnil // a nil replication waits for no replica
	}
	var limit time.Duration
	switch client := client.(type) {
	case *goredis.ClusterClient:
		limit = client.Options().ReadTimeout
	case *goredis.Client:
		limit = client.Options().ReadTimeout
	}
	switch {
	case c.replicas < 1:
		return nil, fmt.Errorf("tokenstore/redis: %d replicas: want 1 or more", c.replicas)
	case c.replicaTimeout < time.Millisecond:
		return nil, fmt.Errorf("tokenstore/redis: time-out of %v for replicas: want 1ms or more", c.replicaTimeout)
	case limit > 0 && c.replicaTimeout > limit/2:
		return nil, fmt.Errorf("tokenstore/redis: time-out of %v for replicas: want at most half of the client's read time-out, %v",
			c.replicaTimeout, limit)
	}
	return &replication{client: client, want: c.replicas, timeout: c.replicaTimeout}, nil
}

// begin runs a script that begins, and waits until replicas have acknowledged the new attempt.
func (p *replication) begin(ctx context.Context, shard int, script *goredis.Script, call redisscript.Call) (reply, error) {
	if _, cluster := p.client.(*goredis.ClusterClient); !cluster {
		shard = 0
	}
	patience, leave := p.gates[shard].enter(p.timeout)
	defer leave()
	r, acks, err := p.runAndWait(ctx, patience, script, call)
	if err != nil || r.verdict != verdictBegun {
		return r, err // there is no new write to acknowledge
	}
	got, err := acks.Int()
	if err != nil {
		// The attempt has begun, whatever the error says of the server.
		return reply{}, fmt.Errorf("tokenstore/redis: begin: wait for replicas: %w: %w", driver.ErrUnavailable, err)
	}
	p.gates[shard].short.Store(got < p.want)
	if got >= p.want {
		return r, nil
	}
	return reply{}, fmt.Errorf("tokenstore/redis: begin: %d of %d replicas acknowledged: %w", got, p.want, driver.ErrUnavailable)
}

// gate remembers a shortfall of replicas at the last Begin. Until it is over, one Begin at
// a time waits with full patience, and the others wait a tenth as long. Each waiting Begin
// holds a connection, and the pool has to serve replays and settlements meanwhile.
type gate struct {
	short atomic.Bool
	probe atomic.Bool
}

const hurry = 10

// enter returns how long a Begin may wait. The caller calls leave after that.
func (g *gate) enter(full time.Duration) (patience time.Duration, leave func()) {
	switch {
	case !g.short.Load():
		return full, func() {}
	case g.probe.CompareAndSwap(false, true):
		return full, func() { g.probe.Store(false) }
	}
	return full / hurry, func() {}
}

// within is the time-out of a WAIT. It is shorter than the rest of the context, so the
// answer still arrives. It is never 0, because Redis would then wait for ever.
func within(ctx context.Context, patience time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		patience = min(patience, left-min(left/4, 100*time.Millisecond))
	}
	return max(patience, time.Millisecond)
}

// runAndWait runs a script and WAIT in one round trip over one connection, because WAIT
// concerns the last write of its connection. It uses the primary's own client. The client
// of a cluster would send the WAIT to any node, because WAIT has no key. The script may
// run twice. After a failure in a cluster, runAndWait looks for the primary again and
// sends it there, once.
func (p *replication) runAndWait(ctx context.Context, patience time.Duration, script *goredis.Script, call redisscript.Call) (r reply, acks *goredis.Cmd, err error) {
	cluster, isCluster := p.client.(*goredis.ClusterClient)
	for try := 0; ; try++ {
		node, _ := p.client.(*goredis.Client)
		if isCluster {
			if node, err = cluster.MasterForKey(ctx, call.Keys[0]); err != nil {
				return r, nil, unavailable("begin", err)
			}
		}
		cmd := redisscript.Pipelined(ctx, node, script, []redisscript.Call{call}, func(pipe goredis.Pipeliner) {
			acks = pipe.Do(ctx, "wait", p.want, within(ctx, patience).Milliseconds())
		})[0]
		var parts []string
		if parts, err = cmd.StringSlice(); err == nil {
			r, err = parseReply("begin", parts)
			return r, acks, err
		}
		if !isCluster || try > 0 || ctx.Err() != nil {
			return r, nil, unavailable("begin", err)
		}
		// This loads the slots anew.
		if rerr := cluster.ForEachMaster(ctx, func(context.Context, *goredis.Client) error { return nil }); rerr != nil {
			return r, nil, unavailable("begin", errors.Join(err, rerr))
		}
	}
}

// check looks for primaries with fewer replicas than a Begin needs, or with a user who may not
// WAIT. The error wraps driver.ErrUnavailable. It asks INFO, and without the permission waits as a Begin
// does.
func (p *replication) check(ctx context.Context) error {
	if p == nil {
		return nil
	}
	err := redisserver.EachPrimary(ctx, p.client, func(ctx context.Context, node *goredis.Client) error {
		if err := node.Do(ctx, "wait", 0, 1).Err(); err != nil { // it asks for nothing
			return fmt.Errorf("wait for replicas: %w", err)
		}
		info, err := node.Info(ctx, "replication").Result()
		got := attached(info)
		if redisserver.Answered(err) { // the user may not ask
			got, err = node.Do(ctx, "wait", p.want, within(ctx, p.timeout).Milliseconds()).Int()
		}
		if err != nil {
			return err
		}
		if got < p.want {
			return fmt.Errorf("%s has %d of %d replicas", node.Options().Addr, got, p.want)
		}
		return nil
	})
	if err != nil {
		return unavailable("replicas", err)
	}
	return nil
}

// replica matches a replica in INFO if it is online and reported within 10 seconds, the
// default of min-replicas-max-lag:
//
//	slave0:ip=10.0.0.2,port=6379,state=online,offset=4711,lag=0
var replica = regexp.MustCompile(`(?m)^slave\d+:.*\bstate=online,.*\blag=(\d|10)\b`)

// attached counts the live replicas in INFO.
func attached(info string) int { return len(replica.FindAllString(info, -1)) }
