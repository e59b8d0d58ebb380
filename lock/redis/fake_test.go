package redislock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// fake stands for Redis behind the client, in a bubble of synctest. So tests see at which moment
// the locker asks for what. It answers like a server where every lock is free.
type fake struct {
	mu      sync.Mutex
	began   time.Time
	answers map[string]func(ctx context.Context) (any, error) // by the name of the script or command
	sent    map[string][]time.Duration                        // since began
}

// errPatience is how a client ends a request to a server that says nothing.
var errPatience = errors.New("i/o timeout")

// silence is no answer. The client gives up at the deadline of ctx, and after a minute at the latest.
func silence(ctx context.Context) (any, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Minute):
		return nil, errPatience
	}
}

// says answers with a value or an error.
func says(v any, err error) func(context.Context) (any, error) {
	return func(context.Context) (any, error) { return v, err }
}

// to sets the answers to a script or command.
func (f *fake) to(what string, answer func(context.Context) (any, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[what] = answer
}

// times is when a script or command was sent.
func (f *fake) times(what string) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.sent[what])
}

func (f *fake) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (f *fake) ProcessHook(goredis.ProcessHook) goredis.ProcessHook { return f.process }

func (f *fake) ProcessPipelineHook(goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) (first error) {
		for _, cmd := range cmds {
			if err := f.process(ctx, cmd); first == nil {
				first = err
			}
		}
		return first
	}
}

func (f *fake) process(ctx context.Context, cmd goredis.Cmder) error {
	what := cmd.Name()
	if what == "evalsha" {
		what = map[any]string{acquireScript.Hash(): "acquire", extendScript.Hash(): "extend", releaseScript.Hash(): "release", pingScript.Hash(): "ping"}[cmd.Args()[1]]
	}
	f.mu.Lock()
	f.sent[what] = append(f.sent[what], time.Since(f.began))
	answer := f.answers[what]
	f.mu.Unlock()
	if answer == nil {
		return nil
	}
	v, err := answer(ctx)
	if err != nil {
		cmd.SetErr(err)
		return err
	}
	switch cmd := cmd.(type) {
	case *goredis.Cmd:
		cmd.SetVal(v)
	case *goredis.DurationCmd:
		cmd.SetVal(v.(time.Duration))
	}
	return nil
}

// withFake runs a test in a bubble with a locker on a fake Redis. Advance of clock is a suspension
// of the machine. Otherwise the lease clock goes with that of the bubble.
func withFake(t *testing.T, test func(t *testing.T, f *fake, l *Locker, clock *leaseclock.Manual)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{began: time.Now(), sent: map[string][]time.Duration{}, answers: map[string]func(context.Context) (any, error){
			"acquire": says("7 d", nil), "extend": says(int64(1), nil), "release": says(int64(1), nil), "pttl": says(time.Duration(-2), nil),
		}}
		clock := leaseclock.NewManual()
		client := connect(t, 1, "127.0.0.1:1")
		client.(*goredis.Client).AddHook(f)
		l := open(t, client, withClock(func() leaseclock.Instant { return clock.Now().Add(time.Since(f.began)) }),
			func(c *config) { c.evictionEvery = 1000 * time.Hour })
		test(t, f, l, clock)
		l.Abandon()
		time.Sleep(5 * time.Minute) // the requests that are under way end
	})
}
