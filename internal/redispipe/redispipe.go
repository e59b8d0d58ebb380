// Package redispipe lets calls to Redis share pipelines, so that a busy service sends few large packets
// and no call waits for the round trip of another one.
//
// A call that finds the [Lane] idle goes to Redis at once, alone, over the client and with its own context.
// What a call does that finds others under way depends on the distance of the server:
//
//   - Near, with round trips below [far]: it waits in a list until the pipeline under way has its answer. Then all
//     calls in the list go together. A loaded processor makes pipelines longer than the pause between two of
//     them would be, so pipelines that start earlier would only be shorter.
//   - Far: it goes at once, together with those in the list, on a connection of its own. The lane limits how
//     often that happens (one pipeline each [interval], and [burst] of them at once) and how many
//     pipelines are under way. Beyond the limits it waits in the list for the end of any pipeline.
//
// # What a caller can rely on
//
//   - Each call has an answer or an error of its own. A failed command does not harm the
//     others in its pipeline.
//   - A call returns at its deadline. A call that waits also returns when its context is
//     cancelled. A call that went alone does not, because the client heeds only the
//     deadline of a command that it has sent.
//   - Redis may still apply the call after that. A call in the list is left out of the next pipeline. A
//     call whose pipeline waits for a connection is sent when there is one.
//   - If the client panics, for example in a hook, each command of its pipeline has the panic as its error.
//   - A call may be applied twice, and late. The client repeats a pipeline if the
//     connection breaks, and it gives up at the latest deadline of all calls in it. The
//     same holds for a single command whose reply was lost, so every call that goes
//     through a Lane must be safe to repeat and to arrive late.
//   - Calls under way at the same moment may be applied in any order. A call that has its answer was applied
//     before every later call of the same caller.
//   - A call waits in the list for [patience] at most. If no pipeline has ended by then, the list goes on another
//     connection.
//
// Large values belong into a [Bulk], because the other calls of the pipeline would wait for them. A pipeline is
// bounded in bytes, too. A WAIT does not belong here, because it concerns the last write of one connection.
package redispipe

import (
	"context"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

const (
	// patience is how long the calls in the list wait if no pipeline ends.
	patience = 20 * time.Millisecond
	// most is the number of calls in one pipeline. Redis answers a pipeline as a whole, so
	// a longer one delays its first call.
	most = 128
	// maxBytes is what one pipeline carries, unless its first call alone is larger.
	maxBytes = 256 << 10
	// maxUnderWay is the number of pipelines under way, if the client has connections for them.
	maxUnderWay = 32
)

// Lane sends calls to one server or to one slot of a cluster. Calls that share a pipeline
// have to go to the same server, because they wait for each other. A Lane is safe for
// concurrent use. Make it with [New].
type Lane struct {
	client goredis.UniversalClient
	limit  int // pipelines under way

	mu       sync.Mutex
	pace     pace
	era      uint64      // counts the times that patience was over
	underWay int         // pipelines of this era
	hung     int         // pipelines of earlier eras
	waiting  []*call     // the list
	turn     uint64      // counts the pipelines that have left the list
	overdue  *time.Timer // ends the era unless a pipeline leaves the list; nil if the list is empty
}

// call is one caller's commands.
type call struct {
	ctx  context.Context
	cmds []goredis.Cmder
	size int           // bytes, roughly
	done chan struct{} // closed when the commands have their answers, or will get none
	err  error         // set before done is closed: the commands were not sent
}

// pipeline is under way, with one call or more.
type pipeline struct {
	era   uint64
	start time.Time
}

// New returns a lane over client. It uses at most a quarter of the client's connections, because a store and a
// lock on one client have a lane each, and large calls take up to half.
func New(client goredis.UniversalClient) *Lane {
	return &Lane{client: client, limit: max(1, min(maxUnderWay, poolOf(client)/4))}
}

// Do sends commands and waits for their answers. The commands of one call stay together
// and in order. Each has its own answer and error. Do returns an error if ctx ends before
// the answers are there. The commands then still belong to the pipeline, and the caller
// must not touch them again.
func (l *Lane) Do(ctx context.Context, cmds ...goredis.Cmder) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	p, c := l.enter(ctx, cmds)
	if c == nil {
		l.end(p, l.send(ctx, cmds))
		return nil
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// enter starts a pipeline of one call, or puts the call into the list. A call that may start takes
// those in the list with it.
func (l *Lane) enter(ctx context.Context, cmds []goredis.Cmder) (p pipeline, c *call) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	free := l.underWay == 0 || l.underWay+l.hung < l.limit && l.pace.another(now)
	if free && len(l.waiting) == 0 {
		l.underWay++
		return pipeline{l.era, now}, nil
	}
	c = &call{ctx: ctx, cmds: cmds, size: sizeOf(cmds), done: make(chan struct{})}
	l.waiting = append(l.waiting, c)
	if free {
		l.startNext(now)
	}
	l.limitWait()
	return p, c
}

// end notes the end of a pipeline. The calls in the list take its place. A pipeline that was given up has none.
func (l *Lane) end(p pipeline, answered bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if answered {
		l.pace.took(now, now.Sub(p.start))
	}
	if p.era != l.era {
		l.hung--
		return
	}
	l.underWay--
	if l.underWay == 0 || l.pace.far() {
		l.startNext(now)
	}
}

// startNext sends the calls in the list, or as many as fit into one pipeline. The caller holds mu.
func (l *Lane) startNext(now time.Time) {
	n := l.fits()
	if n == 0 {
		return
	}
	batch := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	l.turn++
	l.underWay++
	go l.sendTogether(batch, pipeline{l.era, now})
	if l.overdue != nil {
		l.overdue.Stop()
		l.overdue = nil
	}
	l.limitWait()
}

// limitWait starts the timer of the list. The caller holds mu.
func (l *Lane) limitWait() {
	if turn := l.turn; len(l.waiting) > 0 && l.overdue == nil {
		l.overdue = time.AfterFunc(patience, func() { l.giveUp(turn) })
	}
}

// giveUp takes the pipelines under way for hung, and sends the calls in the list.
func (l *Lane) giveUp(turn uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if turn != l.turn {
		return
	}
	l.era++
	l.hung += l.underWay
	l.underWay = 0
	l.startNext(time.Now())
}

// fits is how many of the calls that wait go into the next pipeline. The caller holds mu.
func (l *Lane) fits() (n int) {
	for size := 0; n < min(len(l.waiting), most); n++ {
		if size += l.waiting[n].size; n > 0 && size > maxBytes {
			break
		}
	}
	return n
}

// sizeOf counts the texts in commands.
func sizeOf(cmds []goredis.Cmder) (n int) {
	for _, cmd := range cmds {
		for _, arg := range cmd.Args() {
			switch arg := arg.(type) {
			case *string:
				n += len(*arg)
			case string:
				n += len(arg)
			case []byte:
				n += len(arg)
			}
		}
	}
	return n
}

// sendTogether sends several calls in one pipeline. It leaves out those whose callers
// have given up. The pipeline's context belongs to no caller. It ends at the latest
// deadline of all.
func (l *Lane) sendTogether(batch []*call, p pipeline) {
	answered := false
	defer func() { l.end(p, answered) }()
	cmds, latest, endless := make([]goredis.Cmder, 0, 2*len(batch)), time.Time{}, false
	for _, c := range batch {
		if c.err = context.Cause(c.ctx); c.err != nil {
			continue
		}
		cmds = append(cmds, c.cmds...)
		deadline, ok := c.ctx.Deadline()
		endless = endless || !ok
		if deadline.After(latest) {
			latest = deadline
		}
	}
	ctx := context.Background()
	if !endless {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, latest)
		defer cancel()
	}
	defer func() {
		for _, c := range batch {
			close(c.done)
		}
	}()
	answered = l.send(ctx, cmds)
}

// send sends commands in one round trip. Each command has its error. It reports whether the server answered.
func (l *Lane) send(ctx context.Context, cmds []goredis.Cmder) (answered bool) {
	switch len(cmds) {
	case 0:
		return false
	case 1:
		redisserver.Process(ctx, l.client, cmds[0])
	default:
		pipe := l.client.Pipeline()
		_ = pipe.BatchProcess(ctx, cmds...)
		redisserver.Exec(ctx, pipe)
	}
	err := cmds[0].Err()
	return err == nil || redisserver.Answered(err)
}
