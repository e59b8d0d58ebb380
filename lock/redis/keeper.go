package redislock

import (
	"context"
	"embed"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/redislocks"
	"github.com/idemkeeper/idemkeeper/internal/redispipe"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Shards is the number of parts of the key space. It is part of the layout. Each shard has a
// counter of fences and a lock domain of its own.
const Shards = redisserver.Shards

//go:embed lua/*.lua
var lua embed.FS

// Every script may run twice, because the client sends a command again if its reply was
// lost.
var (
	acquireScript = redisscript.New(redisscript.Text(redislocks.Lua, redislocks.Acquire), redisscript.Text(lua, "lua/acquire.lua"))
	extendScript  = redisscript.Load(lua, "lua/extend.lua")
	releaseScript = redisscript.Load(lua, "lua/release.lua")
	pingScript    = redisscript.Load(lua, "lua/ping.lua")
)

// keeper sends the requests about locks to Redis, and notes which parts of it answer.
// Each shard of a cluster is a part. A single server is one part.
type keeper struct {
	client goredis.UniversalClient
	keys   *redislocks.Keys
	ttl    time.Duration
	evicts *redisserver.Eviction
	health *leasing.Health
	lanes  []*redispipe.Lane // one for each part, so no part waits for another one's server
}

var _ leasing.Service = (*keeper)(nil)

func newKeeper(client goredis.UniversalClient, c config) *keeper {
	parts := 1
	if _, cluster := client.(*goredis.ClusterClient); cluster {
		parts = Shards
	}
	k := &keeper{client, redislocks.NewKeys(c.prefix), c.ttl, redisserver.NewEviction(client, c.log, c.evictionEvery),
		leasing.NewHealth(parts, redisserver.Answered), make([]*redispipe.Lane, parts)}
	for i := range k.lanes {
		k.lanes[i] = redispipe.New(client)
	}
	return k
}

// Admit implements [leasing.Service].
func (k *keeper) Admit(ctx context.Context, id driver.KeyID) error {
	switch {
	case !k.health.Admit(redisserver.ShardOf(id)):
		return leasing.ErrNoAnswer
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return k.evicts.Refuse(ctx)
}

// run runs a script on the lock of id and on other keys of its shard, in a pipeline that it
// may share with other requests.
func (k *keeper) run(ctx context.Context, id driver.KeyID, script *goredis.Script, call redisscript.Call) (*goredis.Cmd, error) {
	shard, sent := redisserver.ShardOf(id), time.Now()
	cmd := goredis.NewCmd(ctx, redisscript.EvalSha(script, call)...)
	cmd.SetFirstKeyPos(redisscript.FirstKey)
	if err := k.lanes[shard%len(k.lanes)].Do(ctx, cmd); err != nil {
		k.health.Note(ctx, shard, sent, ctx.Err()) // err may be the caller's own reason
		return nil, err
	}
	if redisscript.MustResend(cmd.Err()) {
		cmd = redisscript.Resend(ctx, k.client, script, call)
	}
	k.health.Note(ctx, shard, sent, cmd.Err())
	return cmd, cmd.Err()
}

// offered is a lock as scripts take it.
func (k *keeper) offered(lock leasing.Lock) driver.OfferedLock {
	return driver.OfferedLock{Owner: lock.Owner.String(), Nonce: lock.Nonce, Note: thisProcess, TTL: k.ttl}
}

// Acquire implements [leasing.Service].
func (k *keeper) Acquire(ctx context.Context, lock leasing.Lock) (driver.Fence, bool, error) {
	owner, holder, ttl := redislocks.Args(k.offered(lock))
	cmd, err := k.run(ctx, lock.ID, acquireScript, redisscript.Call{
		Keys: []string{k.keys.Lock(lock.ID), k.keys.Fences(redisserver.ShardOf(lock.ID))},
		Args: []string{owner, holder, ttl},
	})
	if err != nil {
		return driver.Fence{}, false, err
	}
	got, err := cmd.Text()
	if err != nil || got == "" {
		return driver.Fence{}, false, err
	}
	token, domain, _ := strings.Cut(got, " ")
	fence, err := redislocks.Fence(token, domain)
	return fence, err == nil, err
}

// Extend implements [leasing.Service], in one pipeline.
func (k *keeper) Extend(ctx context.Context, locks []leasing.Lock) []error {
	calls, sent := make([]redisscript.Call, len(locks)), time.Now()
	for i, lock := range locks {
		calls[i] = redisscript.Call{Keys: []string{k.keys.Lock(lock.ID)}, Args: []string{lock.Owner.String(), k.millis()}}
	}
	replies, answers := redisscript.Pipelined(ctx, k.client, extendScript, calls, nil), make([]error, len(locks))
	for i, lock := range locks {
		k.health.Note(ctx, redisserver.ShardOf(lock.ID), sent, replies[i].Err())
		n, err := replies[i].Int()
		if err == nil && n != 1 {
			err = leasing.ErrGone
		}
		answers[i] = err
	}
	return answers
}

func (k *keeper) millis() string { return strconv.FormatInt(k.ttl.Milliseconds(), 10) }

// Remove implements [leasing.Service].
func (k *keeper) Remove(ctx context.Context, lock leasing.Lock, _ bool) (bool, error) {
	if !k.health.Admit(redisserver.ShardOf(lock.ID)) {
		return false, leasing.ErrNoAnswer
	}
	cmd, err := k.run(ctx, lock.ID, releaseScript, redisscript.Call{Keys: []string{k.keys.Lock(lock.ID)}, Args: []string{lock.Owner.String()}})
	if err != nil {
		return false, err
	}
	n, err := cmd.Int()
	return n == 1, err
}

// Remaining implements [leasing.Service].
func (k *keeper) Remaining(ctx context.Context, id driver.KeyID) (time.Duration, error) {
	sent := time.Now()
	cmd := goredis.NewDurationCmd(ctx, time.Millisecond, "pttl", k.keys.Lock(id))
	redisserver.Process(ctx, k.client, cmd)
	left, err := cmd.Result()
	k.health.Note(ctx, redisserver.ShardOf(id), sent, err)
	switch {
	case err != nil:
		return 0, err
	case left == -2: // there is no such key
		return 0, nil
	case left == -1: // an operator has made it stay
		return leasing.MostLook, nil
	}
	return max(left, time.Millisecond), nil
}

// ping runs on every part of the service the commands that locks need.
func (k *keeper) ping(ctx context.Context) error {
	calls, sent := make([]redisscript.Call, len(k.lanes)), time.Now()
	for shard := range calls {
		calls[shard] = redisscript.Call{Keys: []string{k.keys.Ping(shard), k.keys.Fences(shard)}, Args: []string{k.millis()}}
	}
	for _, answer := range redisscript.Pipelined(ctx, k.client, pingScript, calls, nil) {
		if err := answer.Err(); err != nil {
			return err
		}
	}
	for shard := range calls {
		k.health.Note(ctx, shard, sent, nil)
	}
	return nil
}
