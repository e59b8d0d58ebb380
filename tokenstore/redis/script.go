package redisstore

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

//go:embed lua/prelude.lua
var prelude string

//go:embed lua/issue.lua
var issueLua string

//go:embed lua/begin.lua
var beginLua string

//go:embed lua/settle.lua
var settleLua string

//go:embed lua/abort.lua
var abortLua string

//go:embed lua/get.lua
var getLua string

//go:embed lua/open.lua
var openLua string

// The scripts, with the prelude in front of each.
var (
	issueScript  = goredis.NewScript(prelude + issueLua)
	beginScript  = goredis.NewScript(prelude + beginLua)
	settleScript = goredis.NewScript(prelude + settleLua)
	abortScript  = goredis.NewScript(prelude + abortLua)
	getScript    = goredis.NewScript(prelude + getLua)
)

// unreadable is the verdict of every script where a newer build wrote the record,
// or it is corrupt.
const unreadable = "unreadable"

// reply is what a script returned.
type reply struct {
	verdict string
	record  string // packed; "" where there is none
	body    string // packed response, where it is kept apart
	now     time.Time
	extra   string // of get, and where records were lost: the shard's incarnation
}

// run calls a script by its digest, and sends its text where the server does
// not know it.
func (s *Store) run(ctx context.Context, method string, script *goredis.Script, keys []string, args ...any) (reply, error) {
	cmd := script.Run(ctx, s.client, keys, args...)
	if cmd.Err() != nil {
		askAnew(ctx, s.client)
	}
	return parseReply(method, cmd)
}

func parseReply(method string, cmd *goredis.Cmd) (reply, error) {
	got, err := cmd.Slice()
	if err != nil {
		return reply{}, unavailable(method, err)
	}
	var r reply
	fields := [...]*string{&r.verdict, &r.record, &r.body, nil, &r.extra}
	for i, v := range got {
		switch v := v.(type) {
		case string:
			if i < len(fields) && fields[i] != nil {
				*fields[i] = v
			}
		case int64:
			r.now = time.UnixMilli(v)
		}
	}
	if r.verdict == "" {
		return reply{}, fmt.Errorf("tokenstore/redis: %s: unexpected answer of %d parts", method, len(got)) // not what they hold
	}
	return r, nil
}

// decode returns the record that a script returned.
func (r reply) decode(method string) (idem.Record, error) {
	if r.verdict == unreadable {
		return idem.Record{}, fmt.Errorf("tokenstore/redis: %s: %w", method, cannotRead(r.record))
	}
	rec, err := decodeRecord(r.record, r.body, r.now)
	if err != nil {
		return idem.Record{}, fmt.Errorf("tokenstore/redis: %s: %w", method, err)
	}
	return rec, nil
}

// unavailable wraps what went wrong between us and the server. A context that
// ended is told as such too.
func unavailable(method string, err error) error {
	if errors.Is(err, idem.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("tokenstore/redis: %s: %w: %w", method, idem.ErrUnavailable, err)
}

// failed is unavailable for a call that is not a script's: it has a cluster asked
// anew which primary has what, as run does.
func (s *Store) failed(ctx context.Context, method string, err error) error {
	askAnew(ctx, s.client)
	return unavailable(method, err)
}

// askAnew has a cluster asked, in the background, which primary has what: the one
// that was asked last may be dead, and only a live one tells where a slot has
// gone. By itself the client asks once a minute.
func askAnew(ctx context.Context, client goredis.UniversalClient) {
	if c, ok := client.(*goredis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// millis is d in ms, rounded up, so that nothing expires early.
func millis(d time.Duration) string {
	if d <= 0 {
		return "0"
	}
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
