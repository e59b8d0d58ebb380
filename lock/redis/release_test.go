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
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
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
	await(t, "release", l.background.Idle())
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
	await(t, "release", l.background.Idle())
	release(t, lease)
	release(t, takeEventually(t, l, again(req)))
}

// A second Release waits for the same answer as the first, and asks for nothing.
func TestReleaseTwiceAtOnce(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	proxy := testserver.StartRedisProxy(t, r.Addr())
	l, req := open(t, connect(t, 1, proxy.Addr()), WithTTL(time.Minute)), request()
	release(t, take(t, l, request())) // the server knows the scripts
	lease := take(t, l, req)
	hold := proxy.HoldNextReply(testserver.Contains(req.KeyID.String()))
	results := make(chan error, 2)
	go func() { results <- lease.Release(t.Context()) }()
	await(t, "first release", hold.Held())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := lease.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second Release() = %v before the first has its answer, want %v", err, context.DeadlineExceeded)
	}
	go func() { results <- lease.Release(t.Context()) }()
	hold.Release()
	for range 2 {
		if err := <-results; err != nil {
			t.Errorf("Release() = %v, want <nil>", err)
		}
	}
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

// A young lease has no timer, and the heartbeat sets one. A lease that was granted late
// has one from the start, because the heartbeat may look only after the end of its trust.
func TestTimerOfALease(t *testing.T) {
	t.Parallel()
	const ttl = time.Hour // no heartbeat in this test
	clock := leaseclock.NewManual()
	l := open(t, connect(t, 2, sharedAddr(t)), freshPrefix(t), WithTTL(ttl), withClock(clock.Now))
	timed := func(le *lease) bool {
		le.mu.Lock()
		defer le.mu.Unlock()
		return le.timer != nil
	}
	young := take(t, l, request()).(*lease)
	if timed(young) {
		t.Error("a new lease has a timer, want none")
	}
	young.guard()
	if !timed(young) {
		t.Error("a lease of the heartbeat's age has no timer")
	}
	release(t, young)
	for age, want := range map[time.Duration]bool{heartbeatOf(ttl) - 1: false, heartbeatOf(ttl): true} {
		late := &lease{l: l, id: request().KeyID, renewed: clock.Now().Add(-age), done: make(chan struct{}), gone: make(chan struct{})}
		if err := l.grant(late); err != nil {
			t.Fatalf("grant() at the age of %v = %v, want <nil>", age, err)
		}
		if timed(late) != want {
			t.Errorf("a lease granted at the age of %v has a timer: %v, want %v", age, !want, want)
		}
		release(t, late)
	}
}

// A lease that no heartbeat renews is over when its trust ends.
func TestHeartbeatSetsTheTimerBeforeItAsks(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t)
	l := open(t, connect(t, 1, r.Addr()), WithTTL(3*time.Second))
	lease := take(t, l, request()).(*lease)
	r.Pause()
	defer r.Resume()
	for timer := false; !timer; {
		select {
		case <-lease.Done():
			t.Fatal("Done() without a timer")
		case <-time.After(time.Millisecond):
		}
		lease.mu.Lock()
		timer = lease.timer != nil
		lease.mu.Unlock()
	}
	await(t, "Done() of the lease", lease.Done())
	if late := leaseclock.Now().Sub(lease.renewed.Add(trustOf(l.ttl))); late < 0 {
		t.Errorf("the lease ended %v before its trust", -late)
	}
}
