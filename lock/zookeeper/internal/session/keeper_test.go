package session

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
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

// Close waits for all goroutines, and so does a second call. Nothing begins or is served after that.
func TestCloseWaitsForEveryGoroutine(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"session", "keeper"} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := alone(t)
				reconnect(s)
				confirm(s)
				k := keeperOf(s)
				release, closed := make(chan struct{}), make(chan error, 2)
				ran := false
				if of == "session" {
					s.Status.Go(func() { <-s.Status.Over(); <-release; ran = true })
				} else {
					k.Go(func() { <-k.Context().Done(); <-release; ran = true })
				}
				for range 2 {
					go func() { closed <- k.Close(context.Background()) }()
				}
				synctest.Wait()
				if err := s.Status.Err(); err != nil {
					t.Errorf("Err() = %v before the keeper has stopped to replace the session", err)
				}
				close(k.stopped)
				time.Sleep(time.Minute)
				if len(closed) > 0 {
					t.Errorf("Close() = %v while a goroutine runs", <-closed)
				}
				if k.Go(func() { t.Error("Go() has run a function after Close()") }) {
					t.Error("Go() = true after Close()")
				}
				if _, err := k.Usable(); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, ErrClosed) || k.AwaitUsable(context.Background()) {
					t.Errorf("Usable() = %v after Close(), want %v", err, ErrClosed)
				}
				close(release)
				for range 2 {
					if err := <-closed; err != nil || !ran {
						t.Errorf("Close() = %v, want nil", err)
					}
				}
				if err := s.Status.Err(); !errors.Is(err, ErrClosed) || k.Current() != nil {
					t.Errorf("Err() = %v, and the session is kept: %v, want %v", err, k.Current() != nil, ErrClosed)
				}
			})
		})
	}
}

// Close says what it could not do. The session ends all the same.
func TestCloseTellsWhatIsLeft(t *testing.T) {
	t.Parallel()
	enough := errors.New("enough")
	for name, tt := range map[string]struct {
		before func(k *Keeper, s *Session)
		want   error
	}{
		"nothing":          {func(*Keeper, *Session) {}, nil},
		"a lock":           {func(_ *Keeper, s *Session) { s.Trust.Hold(func(error) {}, func() {}) }, context.DeadlineExceeded},
		"work":             {func(k *Keeper, _ *Session) { k.Background.Add() }, enough},
		"a deaf listener":  {func(k *Keeper, _ *Session) { k.Watch(func(Event) { time.Sleep(time.Hour) }) }, enough},
		"a lock, released": {func(_ *Keeper, s *Session) { s.Trust.Hold(func(error) {}, func() {}).End() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := alone(t)
				reconnect(s)
				confirm(s)
				k := keeperOf(s)
				close(k.stopped)
				tt.before(k, s)
				ctx, cancel := context.WithTimeoutCause(context.Background(), 3*time.Second, enough)
				defer cancel()
				synctest.Wait()
				began := time.Now()
				err := k.Close(ctx)
				if !errors.Is(err, tt.want) || time.Since(began) > 5*time.Second {
					t.Errorf("Close() = %v after %v, want %v", err, time.Since(began), tt.want)
				}
				if err := s.Status.Err(); !errors.Is(err, ErrClosed) || s.Trust.Held() != 0 {
					t.Errorf("Err() = %v, %d holds after Close(), want %v", err, s.Trust.Held(), ErrClosed)
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

// A caller that waits for a session is woken when there is one that can serve it, over the end of
// others.
func TestAwaitUsableOutlivesSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := alone(t), alone(t)
		k := keeperOf(first)
		k.set(nil, ErrExpired)
		if _, err := k.Usable(); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, ErrExpired) {
			t.Errorf("Usable() = %v between two sessions, want %v because of %v", err, driver.ErrUnavailable, ErrExpired)
		}
		got := make(chan bool, 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { got <- k.AwaitUsable(ctx) }()
		for _, step := range []func(){
			func() {}, func() { k.set(first, nil) }, func() { reconnect(first) }, func() { first.Trust.die(ErrExpired) },
			func() { k.set(second, nil) }, func() { reconnect(second) },
		} {
			step()
			synctest.Wait()
			if _, err := k.Usable(); err == nil || len(got) > 0 {
				t.Fatalf("Usable() = %v, AwaitUsable() has returned: %v, want that nothing serves", err, len(got) > 0)
			}
		}
		confirm(second)
		if s, err := k.Usable(); err != nil || s != second {
			t.Errorf("Usable() = %v, want the second session", err)
		}
		if !<-got {
			t.Error("AwaitUsable() = false with a session that serves")
		}
		second.requests.onState(zk.StateDisconnected)
		go func() { got <- k.AwaitUsable(ctx) }()
		synctest.Wait()
		cancel()
		if <-got {
			t.Error("AwaitUsable() = true without a session that serves")
		}
	})
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

// Only a want of servers is an outage. What the servers refuse stays refused.
func TestOutageIsAWantOfServers(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		err         error
		now, inTime bool // whether it is an outage when the time is over, and before
	}{
		{ErrExpired, true, true},
		{ErrGivenUp, true, true},
		{errNoQuorum, true, true},
		{zk.ErrConnectionClosed, true, true},
		{errNotReady, true, true},
		{errNotConnected, true, true},
		{zk.ErrNoServer, true, true},
		{ErrNotPermitted, true, false},
		{zk.ErrAuthFailed, false, false},
		{driver.ErrUnavailable, false, false}, // it says so already
	} {
		err := fmt.Errorf("x: %w", tt.err)
		if now, inTime := outage(over, err), outage(t.Context(), err); now != tt.now || inTime != tt.inTime {
			t.Errorf("outage(%v) = %v after its time and %v before, want %v and %v", err, now, inTime, tt.now, tt.inTime)
		}
	}
}
