package redislock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
)

// broken is a hook of the application that panics from some time on.
type broken struct{ on atomic.Bool }

func (b *broken) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (b *broken) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if b.on.Load() {
			panic("hook")
		}
		return next(ctx, cmd)
	}
}

func (b *broken) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if b.on.Load() {
			panic("hook")
		}
		return next(ctx, cmds)
	}
}

// A panic of the client in the heartbeat or in a release ends neither the process nor the trust in what Redis
// acknowledges. A lease that cannot be renewed is lost in time, and the lock goes when the hook works again.
func TestPanicsOfTheClientInTheBackground(t *testing.T) {
	t.Parallel()
	hook := new(broken)
	client := connect(t, 1, sharedAddr(t))
	client.AddHook(hook)
	l := open(t, client, freshPrefix(t), WithTTL(time.Second))
	take := func(key idem.Key) idem.Lease {
		t.Helper()
		lease, err := l.TryAcquire(t.Context(), idem.LockRequest{KeyID: idem.NewKeyID("s", key), Nonce: idem.NewNonce()})
		if err != nil {
			t.Fatalf("TryAcquire(%s) = %v", key, err)
		}
		return lease
	}
	kept, given := take("kept"), take("given")
	hook.on.Store(true)
	given.ReleaseInBackground()
	if _, err := l.TryAcquire(t.Context(), idem.LockRequest{KeyID: idem.NewKeyID("s", "other"), Nonce: idem.NewNonce()}); err == nil {
		t.Error("TryAcquire() = nil while the hook panics")
	}
	select {
	case <-kept.Done():
	case <-time.After(20 * time.Second):
	}
	if err := kept.Err(); !errors.Is(err, idem.ErrLeaseLost) {
		t.Errorf("Err() = %v of a lease without a renewal, want %v", err, idem.ErrLeaseLost)
	}
	hook.on.Store(false)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		again, err := l.TryAcquire(t.Context(), idem.LockRequest{KeyID: idem.NewKeyID("s", "given"), Nonce: idem.NewNonce()})
		if err == nil {
			again.ReleaseInBackground()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("TryAcquire() = %v after the hook works again", err)
		}
	}
}
