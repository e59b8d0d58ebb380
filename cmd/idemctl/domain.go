package main

import (
	"context"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
)

// redisDomains are the lock domains of the locks that are kept in Redis, one for
// each shard; "" where nobody has locked yet. They are read as package
// lock/redis documents its layout.
func (a *app) redisDomains(ctx context.Context, client goredis.UniversalClient) (domains [redislock.Shards]string, err error) {
	cmds := make([]*goredis.SliceCmd, len(domains))
	_, err = client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		for shard := range cmds {
			cmds[shard] = pipe.HMGet(ctx, fmt.Sprintf("%s:{%02x}:fences", a.prefix, shard), "domain") // no error where there is none
		}
		return nil
	})
	if err != nil {
		return domains, fmt.Errorf("%w: lock domains of Redis: %w", idem.ErrUnavailable, err)
	}
	for shard, cmd := range cmds {
		domains[shard], _ = cmd.Val()[0].(string)
	}
	return domains, nil
}

// redisShard is the shard of a key's lock.
func redisShard(id idem.KeyID) int { return int(id[0]) % redislock.Shards }

// ofEnsemble reports whether a lock domain is of the ensemble whose locks under
// the default root have the domain own: other roots are appended to it.
func ofEnsemble(domain, own string) bool {
	return domain == own || strings.HasPrefix(domain, own+"/")
}
