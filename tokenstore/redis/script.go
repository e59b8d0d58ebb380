package redisstore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redispipe"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

//go:embed lua/*.lua
var lua embed.FS

// The files of each script. In front of the record's functions, begin and settle try a
// short way for their common case.
var (
	issueFiles  = []string{"lua/clock.lua", "lua/prelude.lua", "lua/issue.lua"}
	beginFiles  = []string{"lua/clock.lua", "lua/begin_fresh.lua", "lua/prelude.lua", "lua/begin.lua"}
	settleFiles = []string{"lua/clock.lua", "lua/settle_completed.lua", "lua/prelude.lua", "lua/settle.lua"}
	probeFiles  = []string{"lua/clock.lua", "lua/probe.lua"}
	forgetFiles = []string{"lua/clock.lua", "lua/prelude.lua", "lua/forget.lua"}
	abortFiles  = []string{"lua/clock.lua", "lua/prelude.lua", "lua/abort.lua"}
)

// Every script may run twice, because the client sends a command again if its reply was
// lost.
var (
	issueScript  = redisscript.Load(lua, issueFiles...)
	beginScript  = redisscript.Load(lua, beginFiles...)
	settleScript = redisscript.Load(lua, settleFiles...)
	forgetScript = redisscript.Load(lua, forgetFiles...)
	abortScript  = redisscript.Load(lua, abortFiles...)
	probeScript  = redisscript.Load(lua, probeFiles...)
	openScript   = redisscript.Load(lua, "lua/open.lua")
	fenceScript  = redisscript.Load(lua, "lua/fence.lua")
)

// Verdicts of the scripts. The header of each script says which it returns.
const (
	verdictBegun      = "begun"
	verdictStale      = "stale"
	verdictSettled    = "settled"
	verdictRepaired   = "repaired"
	verdictLost       = "lost"
	verdictJumped     = "jumped"
	verdictUnreadable = "unreadable"
)

// reply is the answer of a script.
type reply struct {
	verdict string
	packed  string // the record; "" without a record; for verdictJumped the evidence of the clock
	record  driver.Record
	now     time.Time // by the server's clock; the zero time if the script does not tell
	tripped bool      // for verdictJumped: the canary is missing before its time
	apart   bool      // the record is not decoded, because its response has a key of its own
}

// run runs a script on the keys of id, in a pipeline that it may share with other calls.
func (s *Store) run(ctx context.Context, method string, id driver.KeyID, script *goredis.Script, call redisscript.Call) (reply, error) {
	return s.runSized(ctx, method, id, script, call, 0)
}

// runSized is run for a call with a text of size bytes. A large one does not share a pipeline.
func (s *Store) runSized(ctx context.Context, method string, id driver.KeyID, script *goredis.Script, call redisscript.Call, size int) (r reply, err error) {
	cmd := goredis.NewStringSliceCmd(ctx, redisscript.EvalSha(script, call)...)
	cmd.SetFirstKeyPos(redisscript.FirstKey)
	if size >= redispipe.Large {
		err = s.bulk.Write(ctx, s.server(ctx, call.Keys[0]), size, cmd)
	} else {
		err = s.lanes[redisserver.ShardOf(id)].Do(ctx, cmd)
	}
	if err != nil {
		return reply{}, s.failed(ctx, method, err)
	}
	parts, err := cmd.Result()
	if redisscript.MustResend(err) {
		parts, err = redisscript.Resend(ctx, s.client, script, call).StringSlice()
	}
	if err == nil && len(parts) == 0 {
		err = errNoAnswer
	}
	if err != nil {
		return reply{}, s.failed(ctx, method, err)
	}
	r, err = parseReply(method, parts)
	return s.withBody(ctx, method, id, r, err)
}

// allServersTimeout bounds a call of all servers of a cluster.
const allServersTimeout = 5 * time.Second

// askAllServers runs a script once per call, in one pipeline for each server. In a cluster it waits for half of the
// caller's time at most, so that a server that hangs leaves time to act on the answers of the others.
func (s *Store) askAllServers(ctx context.Context, script *goredis.Script, calls []redisscript.Call) []*goredis.Cmd {
	if !s.clocks.single {
		patience := allServersTimeout
		if deadline, ok := ctx.Deadline(); ok {
			patience = min(patience, time.Until(deadline)/2)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	return redisscript.Pipelined(ctx, s.client, script, calls, nil)
}

// withBody adds the response to the answer of a script that found a record with a response apart. The script does
// not return that, because it may be large. The record may have changed since, which is as if the script had come
// later.
func (s *Store) withBody(ctx context.Context, method string, id driver.KeyID, r reply, err error) (reply, error) {
	if err != nil || !r.apart {
		return r, err
	}
	keys := s.keys.of(id)
	found, now, err := s.readFromPrimary(ctx, &keys)
	if err != nil {
		return r, err
	}
	r.now = now
	if r.record, err = decodeValues(found[0], found[4], now); err != nil {
		err = fmt.Errorf("tokenstore/redis: %s: %w", method, err)
	}
	return r, err
}

// compared runs a call that compares the incarnation of the key's shard, and perhaps its clock.
func (s *Store) compared(ctx context.Context, method string, id driver.KeyID, call func(expected string, now reading) (reply, error)) (r reply, err error) {
	shard := redisserver.ShardOf(id)
	err = s.loss.Do(ctx, method, shard, func(expected string) (lost bool, err error) {
		r, err = s.ask(ctx, method, shard, func(now reading) (reply, error) { return call(expected, now) })
		return r.verdict == verdictLost, err
	})
	return r, err
}

// parseReply reads an answer {verdict, record, response, now}. A script leaves out the
// last parts if it has nothing to say there. See [Store.withBody] for a response apart.
func parseReply(method string, parts []string) (r reply, err error) {
	var all [4]string
	copy(all[:], parts)
	time := fields(all[3])
	r.verdict, r.packed, r.now = all[0], all[1], time.time()
	switch r.verdict {
	case verdictJumped:
		r.tripped = tripped(r.packed, all[2] != "", r.now)
	case verdictUnreadable:
		err = cannotRead(r.packed)
	default:
		if r.apart = isApart(r.packed); r.apart {
			break
		}
		r.record, err = decodeRecord(r.packed, all[2], r.now)
	}
	if err != nil {
		return r, fmt.Errorf("tokenstore/redis: %s: %w", method, err)
	}
	return r, nil
}

// failed is unavailable, and makes the client of a cluster look for a new primary. It
// returns nil for a nil error.
func (s *Store) failed(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	redisserver.AskAnew(ctx, s.client)
	return unavailable(method, err)
}

// unavailable wraps a failed exchange with a server. That includes a context that
// ended. It wraps driver.ErrNoWrites too if the server refuses because of its own state.
func unavailable(method string, err error) error {
	if errors.Is(err, driver.ErrUnavailable) {
		return err
	}
	if redisserver.Refuses(err) {
		return fmt.Errorf("tokenstore/redis: %s: %w: %w: %w", method, driver.ErrUnavailable, driver.ErrNoWrites, err)
	}
	return fmt.Errorf("tokenstore/redis: %s: %w: %w", method, driver.ErrUnavailable, err)
}

// wholeMillis is d in ms, rounded up, so that records do not expire early. It is 0 for less.
func wholeMillis(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return max(ms, 0)
}

func millis(d time.Duration) string {
	return strconv.FormatInt(wholeMillis(d), 10)
}
