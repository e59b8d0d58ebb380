package redislock

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// requests counts what a client sends: commands and pipelines.
type requests struct{ n, pipelines atomic.Int64 }

func (r *requests) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (r *requests) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		r.n.Add(1)
		return next(ctx, cmd)
	}
}

func (r *requests) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		r.n.Add(1)
		r.pipelines.Add(1)
		return next(ctx, cmds)
	}
}

func TestFreeLockTakesTwoRequests(t *testing.T) {
	t.Parallel()
	client := connect(t, 2, sharedAddr(t))
	l := open(t, client, freshPrefix(t), WithTTL(time.Hour), func(c *config) { c.evictionEvery = time.Hour })
	for range 2 { // the server knows the scripts after the first time
		release(t, take(t, l, request()))
	}
	var sent requests
	client.AddHook(&sent)
	release(t, take(t, l, request()))
	if got := sent.n.Load(); got != 2 {
		t.Errorf("TryAcquire() and Release() of a free lock took %d requests, want 2", got)
	}
	lease := take(t, l, request())
	before := sent.n.Load()
	lease.ReleaseInBackground()
	if err := l.Close(t.Context()); err != nil { // it waits for the release
		t.Errorf("Close() = %v, want <nil>", err)
	}
	if got := sent.n.Load() - before; got != 1 {
		t.Errorf("ReleaseInBackground() took %d requests, want 1", got)
	}
}

// The release goes on after its caller has left.
func TestReleaseReturnsAtItsDeadline(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	l, req := open(t, connect(t, 1, r.Addr()), WithTTL(time.Minute)), request()
	lease := take(t, l, req)
	r.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := lease.Release(ctx); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Release() with Redis stopped = %v, want %v", err, context.DeadlineExceeded)
	}
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("Release() took %v, want little more than its deadline", took)
	}
	r.Resume()
	release(t, lease) // waits for the background
	release(t, takeEventually(t, l, again(req)))
}

// A caller that finds the lock of another owner changes nothing.
func TestLockedTakesNoFence(t *testing.T) {
	t.Parallel()
	l, req := open(t, connect(t, 2, sharedAddr(t)), freshPrefix(t)), request()
	lease := take(t, l, req)
	value := l.keeper.client.Get(t.Context(), l.keeper.keys.Lock(req.KeyID)).Val()
	wantLocked(t, l, again(req))
	if domain, last := fencesOf(t, l, req.KeyID); lease.Fence() != (driver.Fence{Domain: domain, Token: last}) {
		t.Errorf("the last fence is %s/%d after a refusal, want %s", domain, last, lease.Fence())
	}
	if got := l.keeper.client.Get(t.Context(), l.keeper.keys.Lock(req.KeyID)).Val(); got != value {
		t.Errorf("the lock is %q after a refusal, want %q", got, value)
	}
	release(t, lease)
}
