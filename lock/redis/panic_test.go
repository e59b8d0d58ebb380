package redislock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// broken is a hook of the application that panics from some time on.
type broken struct {
	on       atomic.Bool
	only     string // panics under this command only, if it is not empty
	panicked atomic.Int32
}

func (b *broken) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (b *broken) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if b.on.Load() && (b.only == "" || b.only == cmd.Name()) {
			b.panicked.Add(1)
			panic("hook")
		}
		return next(ctx, cmd)
	}
}

func (b *broken) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if b.on.Load() && b.only == "" {
			panic("hook")
		}
		return next(ctx, cmds)
	}
}

// A panic of the client in the heartbeat, in a release or in the wait for a lock ends neither the process nor the trust in what Redis
// acknowledges. A lease that cannot be renewed is lost in time, and the lock goes when the hook works again.
func TestPanicsOfTheClientInTheBackground(t *testing.T) {
	t.Parallel()
	hook := new(broken)
	client := connect(t, 1, sharedAddr(t))
	client.AddHook(hook)
	l := open(t, client, freshPrefix(t), WithTTL(time.Second))
	take := func(key idem.Key) driver.Lease {
		t.Helper()
		lease, err := l.TryAcquire(t.Context(), driver.LockRequest{KeyID: idem.NewKeyID("s", key), Nonce: driver.NewNonce()})
		if err != nil {
			t.Fatalf("TryAcquire(%s) = %v", key, err)
		}
		return lease
	}
	kept, given := take("kept"), take("given")
	hook.on.Store(true)
	if err := l.Wait(t.Context(), idem.NewKeyID("s", "kept")); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Wait() = %v while the hook panics, want %v", err, driver.ErrUnavailable)
	}
	given.ReleaseInBackground()
	if _, err := l.TryAcquire(t.Context(), driver.LockRequest{KeyID: idem.NewKeyID("s", "other"), Nonce: driver.NewNonce()}); err == nil {
		t.Error("TryAcquire() = nil while the hook panics")
	}
	select {
	case <-kept.Done():
	case <-time.After(20 * time.Second):
	}
	if err := kept.Err(); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Err() = %v of a lease without a renewal, want %v", err, driver.ErrLeaseLost)
	}
	hook.on.Store(false)
	wantGiven(t, l)
}

// The same for a release whose script the server has forgotten, so that it is sent again with its text.
func TestPanicsOfTheClientWhenAScriptIsSentAgain(t *testing.T) {
	t.Parallel()
	hook := &broken{only: "eval"}
	server := testserver.StartRedis(t)
	client := connect(t, 1, server.Addr())
	client.AddHook(hook)
	l := open(t, client, freshPrefix(t))
	given, err := l.TryAcquire(t.Context(), driver.LockRequest{KeyID: idem.NewKeyID("s", "given"), Nonce: driver.NewNonce()})
	if err != nil {
		t.Fatalf("TryAcquire() = %v", err)
	}
	if _, err := server.Do("SCRIPT", "FLUSH"); err != nil {
		t.Fatal(err)
	}
	hook.on.Store(true)
	given.ReleaseInBackground()
	for end := time.Now().Add(20 * time.Second); hook.panicked.Load() == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the script is not sent again")
		}
	}
	hook.on.Store(false)
	wantGiven(t, l)
}

// wantGiven waits until the lock of the key "given" is free.
func wantGiven(t *testing.T, l *Locker) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		again, err := l.TryAcquire(t.Context(), driver.LockRequest{KeyID: idem.NewKeyID("s", "given"), Nonce: driver.NewNonce()})
		if err == nil {
			again.ReleaseInBackground()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("TryAcquire() = %v after the hook works again", err)
		}
	}
}
