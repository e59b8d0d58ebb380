package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/listener"
)

// keeperOf is a keeper of a session that is alone. It does not replace the session.
func keeperOf(s *Session) *Keeper {
	k := &Keeper{
		Listeners: listener.NewGroup(testLogger()), cfg: *s.cfg, retry: Backoff{First: time.Second, Max: time.Second},
		stopped: make(chan struct{}), ended: make(chan struct{}), changed: make(chan struct{}), current: s,
	}
	k.ctx, k.stop = context.WithCancelCause(context.Background())
	return k
}

// A session that is over is replaced. Until then callers hear why there is none.
func TestKeeperTriesOnAfterTheEndOfASession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		k := keeperOf(s)
		go k.keep(s)
		s.Trust.die(ErrExpired)
		synctest.Wait()
		if _, err := k.Usable(); !errors.Is(err, ErrExpired) || k.Current() != nil {
			t.Errorf("Usable() = %v right after the end, want %v", err, ErrExpired)
		}
		for range 2 {
			time.Sleep(k.cfg.OpenTimeout + 2*k.retry.Max)
			synctest.Wait()
			if _, err := k.Usable(); !errors.Is(err, errNotReady) || errors.Is(err, ErrExpired) {
				t.Errorf("Usable() = %v after a try that failed, want %v", err, errNotReady)
			}
		}
		if err := k.Close(context.Background()); err != nil {
			t.Errorf("Close() = %v between two sessions, want nil", err)
		}
	})
}
