package redislock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
)

//go:embed lua/acquire.lua
var acquireLua string

//go:embed lua/extend.lua
var extendLua string

//go:embed lua/release.lua
var releaseLua string

// Every script may be sent twice: the client does so by itself when a reply is
// lost.
var (
	acquireScript = goredis.NewScript(acquireLua)
	extendScript  = goredis.NewScript(extendLua)
	releaseScript = goredis.NewScript(releaseLua)
)

// acquire calls the script. false: somebody else holds the lock.
func (l *Locker) acquire(ctx context.Context, req idem.LockRequest, owner string) (idem.Fence, bool, error) {
	keys := []string{l.keys.lock(req.KeyID), l.keys.fences(shardOf(req.KeyID))}
	got, err := acquireScript.Run(ctx, l.client, keys, owner, req.Nonce.String(), l.millis, newUUID()).StringSlice()
	switch {
	case err != nil:
		return idem.Fence{}, false, err
	case len(got) == 1 && got[0] == "locked":
		return idem.Fence{}, false, nil
	case len(got) != 3 || got[0] != "taken":
		return idem.Fence{}, false, fmt.Errorf("unexpected answer of %d parts", len(got))
	}
	token, err := strconv.ParseUint(got[1], 10, 64)
	if err != nil || token == 0 || got[2] == "" {
		return idem.Fence{}, false, fmt.Errorf("fence %q of domain %q: not a fence", got[1], got[2])
	}
	return idem.Fence{Domain: got[2], Token: token}, true, nil
}

// extend renews one lock. false: it is not the owner's any more.
func (l *Locker) extend(ctx context.Context, id idem.KeyID, owner string) (bool, error) {
	n, err := extendScript.Run(ctx, l.client, []string{l.keys.lock(id)}, owner, l.millis).Int()
	return n == 1, err
}

// remove deletes one lock. false: it is not the owner's, or no more.
func (l *Locker) remove(ctx context.Context, id idem.KeyID, owner string) (bool, error) {
	n, err := releaseScript.Run(ctx, l.client, []string{l.keys.lock(id)}, owner).Int()
	return n == 1, err
}

// extendAll renews many locks in one pipeline, and a second one for servers
// that do not know the script yet. The answers are in the order of the leases.
func (l *Locker) extendAll(ctx context.Context, leases []*lease) []*goredis.Cmd {
	answers := make([]*goredis.Cmd, len(leases))
	send := func(eval func(context.Context, goredis.Scripter, []string, ...any) *goredis.Cmd, which []int) {
		pipe := l.client.Pipeline()
		for _, i := range which {
			answers[i] = eval(ctx, pipe, []string{l.keys.lock(leases[i].id)}, leases[i].owner, l.millis)
		}
		_, _ = pipe.Exec(ctx) // each answer has its own error
	}
	which := make([]int, len(leases))
	for i := range which {
		which[i] = i
	}
	send(extendScript.EvalSha, which)
	var unknown []int
	for i, cmd := range answers {
		if goredis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) > 0 {
		send(extendScript.Eval, unknown)
	}
	return answers
}

// unavailable wraps what went wrong between us and the server.
func unavailable(method string, err error) error {
	if errors.Is(err, idem.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("lock/redis: %s: %w: %w", method, idem.ErrUnavailable, err)
}

// millisOf is d in ms, as Redis takes it.
func millisOf(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
