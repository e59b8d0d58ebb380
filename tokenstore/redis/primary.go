package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
)

// maxLag is for how many seconds a connected replica may have said nothing; it
// does so every second. It is what min-replicas-max-lag is by default.
const maxLag = 10

// primary is the client of the server that a key belongs to.
func (s *Store) primary(ctx context.Context, key string) (*goredis.Client, error) {
	if c, ok := s.client.(*goredis.ClusterClient); ok {
		return c.MasterForKey(ctx, key)
	}
	return s.client.(*goredis.Client), nil
}

// reload asks a cluster anew which primary has what.
func (s *Store) reload(ctx context.Context) error {
	c, ok := s.client.(*goredis.ClusterClient)
	if !ok {
		return nil
	}
	return c.ForEachMaster(ctx, func(context.Context, *goredis.Client) error { return nil })
}

// primaries are the servers that have a shard.
func (s *Store) primaries(ctx context.Context) ([]*goredis.Client, error) {
	if err := s.reload(ctx); err != nil {
		return nil, err
	}
	seen := make(map[*goredis.Client]bool)
	var nodes []*goredis.Client
	for shard := range Shards {
		node, err := s.primary(ctx, s.keys.incarnation(shard))
		if err != nil {
			return nil, err
		}
		if !seen[node] {
			seen[node] = true
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// checkReplicas returns an error that wraps idem.ErrUnavailable where a primary
// has fewer replicas than a Begin needs. A server that does not tell is taken to
// have enough; Begin knows better.
func (s *Store) checkReplicas(ctx context.Context) error {
	if s.replicas == nil {
		return nil
	}
	nodes, err := s.primaries(ctx)
	if err != nil {
		return unavailable("replicas", err)
	}
	for _, node := range nodes {
		info, err := node.Info(ctx, "replication").Result()
		if _, told := err.(goredis.Error); told { //nolint:errorlint // go-redis does not wrap the server's answer
			continue
		}
		if err != nil {
			return unavailable("replicas", err)
		}
		if got := attached(info); got < s.replicas.want {
			return fmt.Errorf("tokenstore/redis: %s has %d of %d replicas: %w",
				node.Options().Addr, got, s.replicas.want, idem.ErrUnavailable)
		}
	}
	return nil
}

// attached counts the replicas that INFO says are online and have been heard of:
//
//	slave0:ip=10.0.0.2,port=6379,state=online,offset=4711,lag=0
func attached(info string) int {
	n := 0
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if number, ok := strings.CutPrefix(name, "slave"); !ok || strings.Trim(number, "0123456789") != "" {
			continue
		}
		online, lag := false, maxLag+1
		for field := range strings.SplitSeq(value, ",") {
			switch k, v, _ := strings.Cut(field, "="); k {
			case "state":
				online = v == "online"
			case "lag":
				if l, err := strconv.Atoi(v); err == nil {
					lag = l
				}
			}
		}
		if online && lag >= 0 && lag <= maxLag {
			n++
		}
	}
	return n
}
