package redislock

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
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
	millis string // ttl in ms
	health *health
	lanes  []*redispipe.Lane // one for each part, so no part waits for another one's server
}

func newKeeper(client goredis.UniversalClient, c config) *keeper {
	parts := 1
	if _, cluster := client.(*goredis.ClusterClient); cluster {
		parts = Shards
	}
	k := &keeper{client, redislocks.NewKeys(c.prefix), c.ttl, strconv.FormatInt(c.ttl.Milliseconds(), 10), newHealth(parts), make([]*redispipe.Lane, parts)}
	for i := range k.lanes {
		k.lanes[i] = redispipe.New(client)
	}
	return k
}

// run runs a script on the lock of id and on other keys of its shard, in a pipeline that it
// may share with other requests.
func (k *keeper) run(ctx context.Context, id driver.KeyID, script *goredis.Script, call redisscript.Call) (*goredis.Cmd, error) {
	shard, sent := redisserver.ShardOf(id), time.Now()
	cmd := goredis.NewCmd(ctx, redisscript.EvalSha(script, call)...)
	cmd.SetFirstKeyPos(redisscript.FirstKey)
	if err := k.lanes[shard%len(k.lanes)].Do(ctx, cmd); err != nil {
		k.health.note(ctx, shard, sent, ctx.Err()) // err may be the caller's own reason
		return nil, err
	}
	if redisscript.MustResend(cmd.Err()) {
		cmd = redisscript.Resend(ctx, k.client, script, call)
	}
	k.health.note(ctx, shard, sent, cmd.Err())
	return cmd, cmd.Err()
}

// acquire takes a lock. It returns false if another owner holds it.
func (k *keeper) acquire(ctx context.Context, id driver.KeyID, lock driver.OfferedLock) (driver.Fence, bool, error) {
	owner, holder, ttl := redislocks.Args(lock)
	cmd, err := k.run(ctx, id, acquireScript, redisscript.Call{
		Keys: []string{k.keys.Lock(id), k.keys.Fences(redisserver.ShardOf(id))},
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

// extend renews the locks of leases, in one pipeline. An answer is 1, or 0 if the lock has
// another owner or is gone.
func (k *keeper) extend(ctx context.Context, leases []*lease) []*goredis.Cmd {
	calls, sent := make([]redisscript.Call, len(leases)), time.Now()
	for i, le := range leases {
		calls[i] = redisscript.Call{Keys: []string{k.keys.Lock(le.id)}, Args: []string{le.lock.Owner, k.millis}}
	}
	answers := redisscript.Pipelined(ctx, k.client, extendScript, calls, nil)
	for i, answer := range answers {
		k.health.note(ctx, redisserver.ShardOf(leases[i].id), sent, answer.Err())
	}
	return answers
}

// remove deletes a lock, unless its shard did not answer a moment ago. It returns false
// if the lock has another owner or is gone.
func (k *keeper) remove(ctx context.Context, id driver.KeyID, owner string) (bool, error) {
	if !k.health.admit(redisserver.ShardOf(id)) {
		return false, errNoAnswer
	}
	cmd, err := k.run(ctx, id, releaseScript, redisscript.Call{Keys: []string{k.keys.Lock(id)}, Args: []string{owner}})
	if err != nil {
		return false, err
	}
	n, err := cmd.Int()
	return n == 1, err
}

// remaining is how long a lock exists unless it is renewed. It is 0 if there is no lock.
func (k *keeper) remaining(ctx context.Context, id driver.KeyID) (time.Duration, error) {
	sent := time.Now()
	cmd := goredis.NewDurationCmd(ctx, time.Millisecond, "pttl", k.keys.Lock(id))
	redisserver.Process(ctx, k.client, cmd)
	left, err := cmd.Result()
	k.health.note(ctx, redisserver.ShardOf(id), sent, err)
	switch {
	case err != nil:
		return 0, err
	case left == -2: // there is no such key
		return 0, nil
	case left == -1: // an operator has made it stay
		return mostLook, nil
	}
	return max(left, time.Millisecond), nil
}

// ping runs on every part of the service the commands that locks need.
func (k *keeper) ping(ctx context.Context) error {
	calls, sent := make([]redisscript.Call, len(k.health.until)), time.Now()
	for shard := range calls {
		calls[shard] = redisscript.Call{Keys: []string{k.keys.Ping(shard), k.keys.Fences(shard)}, Args: []string{k.millis}}
	}
	for _, answer := range redisscript.Pipelined(ctx, k.client, pingScript, calls, nil) {
		if err := answer.Err(); err != nil {
			return err
		}
	}
	for shard := range calls {
		k.health.note(ctx, shard, sent, nil)
	}
	return nil
}

// probePause is the time between a failure and the next call that may look again.
const probePause = 100 * time.Millisecond

// health remembers which parts of the service do not answer. Calls to them fail at once,
// and one call per pause looks again.
type health struct {
	mu    sync.Mutex
	until []time.Time // end of the pause, or zero if the part answers
}

func newHealth(parts int) *health { return &health{until: make([]time.Time, parts)} }

// admit reports whether a call may ask.
func (h *health) admit(shard int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	until := &h.until[shard%len(h.until)]
	if time.Now().Before(*until) {
		return false
	}
	if !until.IsZero() {
		*until = time.Now().Add(probePause) // the others wait for this call
	}
	return true
}

// note records the result of a request. A request that its caller gave up early says
// nothing about the service. ctx is the caller's.
func (h *health) note(ctx context.Context, shard int, sent time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	until := &h.until[shard%len(h.until)]
	switch {
	case err == nil, redisserver.Answered(err):
		*until = time.Time{}
	case errors.Is(err, context.Canceled), endedEarly(ctx, sent, err):
	default:
		*until = time.Now().Add(probePause)
	}
}

// endedEarly reports whether a request failed because its caller gave it less time than
// probePause. The client library gives the deadline of ctx to the connection. The read then
// fails with an error of its own, often just before ctx ends.
func endedEarly(ctx context.Context, sent time.Time, err error) bool {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	deadline, _ := ctx.Deadline()
	return expired(ctx) && deadline.Sub(sent) < probePause
}

// expired reports whether the deadline of ctx is over.
func expired(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}

// unavailable wraps a failed exchange with a server.
func unavailable(method string, err error) error {
	return fmt.Errorf("lock/redis: %s: %w: %w", method, driver.ErrUnavailable, err)
}
