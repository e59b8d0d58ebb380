package redislock

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// probePause is how long callers are refused after a failure before one of
// them is let through to look again.
const probePause = 100 * time.Millisecond

// health remembers which parts of the service do not answer, so that callers
// are refused at once instead of each waiting in vain. It has no goroutine: the
// callers themselves look again, one per pause. A cluster has a part for each
// shard, a single server one.
type health struct {
	started time.Time
	closed  []atomic.Int64 // ns since started until which callers are refused; 0: it answers
}

func newHealth(parts int) *health {
	return &health{started: time.Now(), closed: make([]atomic.Int64, parts)}
}

func (h *health) part(shard int) *atomic.Int64 { return &h.closed[shard%len(h.closed)] }

// admit reports whether a caller may ask. It is also true for the one who looks
// again.
func (h *health) admit(shard int) bool {
	part := h.part(shard)
	until := part.Load()
	if until == 0 {
		return true
	}
	now := time.Since(h.started)
	return int64(now) >= until && part.CompareAndSwap(until, int64(now+probePause))
}

// note records how a request went that was sent at a time. One that its caller
// gave up early says nothing.
func (h *health) note(shard int, sent time.Time, err error) {
	part := h.part(shard)
	switch {
	case err == nil, answered(err):
		if part.Load() != 0 {
			part.Store(0)
		}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded) && time.Since(sent) < probePause:
	default:
		part.Store(int64(time.Since(h.started) + probePause))
	}
}

// answered reports whether an error is a server's answer that is about the
// request, and not about the server.
func answered(err error) bool {
	var reply goredis.Error
	if !errors.As(err, &reply) {
		return false
	}
	for _, state := range []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "OOM", "MISCONF", "NOREPLICAS"} {
		if strings.HasPrefix(reply.Error(), state) {
			return false
		}
	}
	return true
}
