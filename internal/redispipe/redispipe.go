// Package redispipe lets calls to Redis that wait at the same moment share a pipeline.
//
// A call that finds the [Lane] free goes to Redis at once, alone, over the client and with
// its own context. A call that finds the lane busy waits in a list. When the lane is free
// again, all calls in the list go to Redis together, in one pipeline. A busy service
// therefore sends few large packets, and an idle one never waits.
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
//   - A call waits for the pipeline before it for [patience] at most. If that has no answer
//     by then, the calls that wait use another connection.
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
	// patience is how long one pipeline can keep the others from starting.
	patience = 20 * time.Millisecond
	// most is the number of calls in one pipeline. Redis answers a pipeline as a whole, so
	// a longer one delays its first call.
	most = 128
	// maxBytes is what one pipeline carries, unless its first call alone is larger.
	maxBytes = 256 << 10
)

// Lane sends calls to one server or to one slot of a cluster. Calls that share a pipeline
// have to go to the same server, because they wait for each other. A Lane is safe for
// concurrent use. Make it with [New].
type Lane struct {
	client goredis.UniversalClient

	mu      sync.Mutex
	busy    bool        // a pipeline or a single call is under way
	turn    uint64      // counts the uses of the lane
	overdue *time.Timer // gives the lane to the calls that wait; nil if no call waits
	waiting []*call
}

// call is one caller's commands.
type call struct {
	ctx  context.Context
	cmds []goredis.Cmder
	size int           // bytes, roughly
	done chan struct{} // closed when the commands have their answers, or will get none
	err  error         // set before done is closed: the commands were not sent
}

// New returns a lane over client.
func New(client goredis.UniversalClient) *Lane { return &Lane{client: client} }

// Do sends commands and waits for their answers. The commands of one call stay together
// and in order. Each has its own answer and error. Do returns an error if ctx ends before
// the answers are there. The commands then still belong to the pipeline, and the caller
// must not touch them again.
func (l *Lane) Do(ctx context.Context, cmds ...goredis.Cmder) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	turn, c := l.enter(ctx, cmds)
	if c == nil {
		defer l.next(turn)
		l.send(ctx, cmds)
		return nil
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// enter takes the lane and returns its turn, or puts a call in the list.
func (l *Lane) enter(ctx context.Context, cmds []goredis.Cmder) (turn uint64, c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.busy {
		l.busy = true
		return l.turn, nil
	}
	c = &call{ctx: ctx, cmds: cmds, size: sizeOf(cmds), done: make(chan struct{})}
	l.waiting = append(l.waiting, c)
	l.limitWait()
	return l.turn, c
}

// next gives the lane to the calls that wait, once for each turn: when the use of the lane
// ends, or before that if the calls have waited for patience.
func (l *Lane) next(turn uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if turn != l.turn {
		return
	}
	l.turn++
	if l.overdue != nil {
		l.overdue.Stop()
		l.overdue = nil
	}
	n := l.fits()
	if n == 0 {
		l.busy = false
		return
	}
	batch := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	l.limitWait()
	go l.sendTogether(batch, l.turn)
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

// limitWait starts the timer of this turn if calls wait for its end. The caller holds mu.
// A call that has the lane for itself needs no timer.
func (l *Lane) limitWait() {
	if turn := l.turn; len(l.waiting) > 0 && l.overdue == nil {
		l.overdue = time.AfterFunc(patience, func() { l.next(turn) })
	}
}

// sendTogether sends several calls in one pipeline. It leaves out those whose callers
// have given up. The pipeline's context belongs to no caller. It ends at the latest
// deadline of all.
func (l *Lane) sendTogether(batch []*call, turn uint64) {
	defer l.next(turn)
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
	l.send(ctx, cmds)
}

// send sends commands in one round trip. Each command has its error.
func (l *Lane) send(ctx context.Context, cmds []goredis.Cmder) {
	switch len(cmds) {
	case 0:
	case 1:
		redisserver.Process(ctx, l.client, cmds[0])
	default:
		pipe := l.client.Pipeline()
		_ = pipe.BatchProcess(ctx, cmds...)
		redisserver.Exec(ctx, pipe)
	}
}
