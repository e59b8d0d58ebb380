package redisstore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

//go:embed lua/*.lua
var lua embed.FS

// Every script may run twice, because the client sends a command again if its reply was
// lost.
var (
	issueScript  = redisscript.Load(lua, "lua/prelude.lua", "lua/issue.lua")
	beginScript  = redisscript.Load(lua, "lua/prelude.lua", "lua/begin.lua")
	settleScript = redisscript.Load(lua, "lua/prelude.lua", "lua/settle.lua")
	abortScript  = redisscript.Load(lua, "lua/prelude.lua", "lua/abort.lua")
	getScript    = redisscript.Load(lua, "lua/prelude.lua", "lua/get.lua")
	openScript   = redisscript.Load(lua, "lua/open.lua")
)

// Verdicts of the scripts. The header of each script says which it returns.
const (
	verdictGot        = "got"
	verdictBegun      = "begun"
	verdictStale      = "stale"
	verdictSettled    = "settled"
	verdictRepaired   = "repaired"
	verdictLost       = "lost"
	verdictUnreadable = "unreadable"
)

// reply is the answer of a script.
type reply struct {
	verdict     string
	record      string // packed; "" without a record
	body        string // packed response, if it has a key of its own
	now         time.Time
	incarnation string // of get, and of the others with verdictLost
}

// lost is the answer as [loss.Guard.Do] wants it.
func (r reply) lost(err error) (incarnation string, lost bool, _ error) {
	return r.incarnation, r.verdict == verdictLost, err
}

// run runs a script by its hash. It sends the text if the server does not know it.
func run(ctx context.Context, client goredis.UniversalClient, method string, script *goredis.Script, keys []string, args ...any) (reply, error) {
	cmd := script.Run(ctx, client, keys, args...)
	if err := cmd.Err(); err != nil {
		return reply{}, failed(ctx, client, method, err)
	}
	return parseReply(method, cmd)
}

func parseReply(method string, cmd *goredis.Cmd) (r reply, err error) {
	got, err := cmd.Slice()
	if err != nil {
		return r, unavailable(method, err)
	}
	text := func(i int) string {
		if i >= len(got) {
			return ""
		}
		s, _ := got[i].(string)
		return s
	}
	r = reply{verdict: text(0), record: text(1), body: text(2), incarnation: text(4)}
	if len(got) > 3 {
		ms, _ := got[3].(int64)
		r.now = time.UnixMilli(ms)
	}
	if r.verdict == "" {
		return r, fmt.Errorf("tokenstore/redis: %s: unexpected answer of %d parts", method, len(got))
	}
	return r, nil
}

// decode returns the record in an answer.
func (r reply) decode(method string) (rec idem.Record, err error) {
	if r.verdict == verdictUnreadable {
		err = cannotRead(r.record)
	} else {
		rec, err = decodeRecord(r.record, r.body, r.now)
	}
	if err != nil {
		return idem.Record{}, fmt.Errorf("tokenstore/redis: %s: %w", method, err)
	}
	return rec, nil
}

// unavailable wraps a failed exchange with a server. That includes a context that
// ended.
func unavailable(method string, err error) error {
	if errors.Is(err, idem.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("tokenstore/redis: %s: %w: %w", method, idem.ErrUnavailable, err)
}

// failed is unavailable, and makes the client of a cluster look for a new primary.
func failed(ctx context.Context, client goredis.UniversalClient, method string, err error) error {
	redisserver.AskAnew(ctx, client)
	return unavailable(method, err)
}

// errTooLong says that a text does not fit into the record.
var errTooLong = errors.New("text is too long for a record")

func checkLength(method, what, text string, most int) error {
	if len(text) > most {
		return fmt.Errorf("tokenstore/redis: %s: %s of %d bytes, at most %d: %w", method, what, len(text), most, errTooLong)
	}
	return nil
}

// millis is d in ms, rounded up, so that records do not expire early.
func millis(d time.Duration) string {
	return strconv.FormatInt(max(0, int64((d+time.Millisecond-1)/time.Millisecond)), 10)
}
