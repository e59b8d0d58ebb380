package servers

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// Redis has the flags about a token store in Redis.
type Redis struct {
	URL    string // --redis, "" without Redis
	Prefix string
	TLS    *tls.Config

	witness string
}

// Connect returns a client. It connects at its first use.
func (r *Redis) Connect() (goredis.UniversalClient, error) {
	goredis.SetLogger(quiet{})
	client, err := redisstore.Connect(r.URL, redisstore.WithTLS(r.TLS))
	if err != nil {
		return nil, cli.UsageError{Err: fmt.Errorf("--redis: %w", err)}
	}
	return client, nil
}

// WitnessPath is the znode where the services of --prefix remember their Redis.
func (r *Redis) WitnessPath() string { return cmp.Or(r.witness, redisstore.WitnessPath(r.Prefix)) }

// Witness is the znode at WitnessPath.
func (r *Redis) Witness(client *zookeeper.Client) *recipes.Register {
	return recipes.Registers(client)(r.WitnessPath())
}

// Domains are the lock domains of Redis's locks, one for each shard, "" for a shard without locks
// so far.
type Domains [redislock.Shards]string

// Domains reads the lock domains of Redis's locks. All are "" without a client. Package lock/redis
// documents the layout.
func (r *Redis) Domains(ctx context.Context, client goredis.UniversalClient) (domains Domains, err error) {
	if client == nil {
		return domains, nil
	}
	cmds := make([]*goredis.SliceCmd, len(domains))
	_, err = client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		for shard := range cmds {
			cmds[shard] = pipe.HMGet(ctx, fmt.Sprintf("%s:{%02x}:fences", r.Prefix, shard), "domain") // a missing field is no error
		}
		return nil
	})
	if err != nil {
		return domains, fmt.Errorf("%w: lock domains of Redis: %w", driver.ErrUnavailable, err)
	}
	for shard, cmd := range cmds {
		domains[shard], _ = cmd.Val()[0].(string)
	}
	return domains, nil
}

// Of is the domain of a key's lock.
func (d *Domains) Of(id driver.KeyID) string { return d[int(id[0])%redislock.Shards] }

// quiet keeps Redis's client library from writing to standard error. The commands
// report its errors in one line.
type quiet struct{}

// Printf does nothing.
func (quiet) Printf(context.Context, string, ...any) {}
