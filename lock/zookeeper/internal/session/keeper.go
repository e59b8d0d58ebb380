package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/background"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/listener"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/wire"
)

// Keeper keeps a session, and replaces it when it is over. It is safe for concurrent
// use.
type Keeper struct {
	// Background counts the work that Close waits for.
	Background background.Tracker
	// Listeners call the application's functions with events.
	Listeners *listener.Group

	cfg   Config
	retry Backoff
	feed  feed

	cleanup sync.WaitGroup  // shutdowns of ended sessions, and goroutines of Go
	ctx     context.Context // ends with Close or Abandon
	stop    context.CancelCauseFunc
	stopped chan struct{} // closed when keep has returned
	ended   chan struct{} // closed when Close or Abandon has returned

	mu      sync.Mutex    // taken alone
	current *Session      // nil between two sessions
	changed chan struct{} // closed and replaced when current changes
	lastErr error         // why there is no session
}

// Keep starts a session, and keeps one until Close or Abandon. It fails when ctx or
// Config.OpenTimeout ends, and wraps driver.ErrUnavailable if no server served it in time.
func Keep(ctx context.Context, cfg Config, retry Backoff) (*Keeper, error) {
	k := &Keeper{
		Listeners: listener.NewGroup(cfg.Logger), cfg: cfg, retry: retry,
		stopped: make(chan struct{}), ended: make(chan struct{}), changed: make(chan struct{}),
	}
	k.ctx, k.stop = context.WithCancelCause(context.Background())
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.OpenTimeout, fmt.Errorf("%w within %v", errNotReady, cfg.OpenTimeout))
	defer cancel()
	s, err := start(ctx, &k.cfg)
	for passing(err) && ctx.Err() == nil {
		time.Sleep(20*time.Millisecond + rand.N(20*time.Millisecond))
		s, err = start(ctx, &k.cfg)
	}
	if err != nil {
		k.stop(err)
		if outage(ctx, err) {
			err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
		}
		return nil, fmt.Errorf("zookeeper: open %v: %w", cfg.Servers, err)
	}
	k.adopt(s)
	go k.keep(s)
	return k, nil
}

// passing reports whether the reason for a failed start may be over soon. A server that just
// joins its ensemble refuses sessions granted a moment ago, and a slow server may not answer in
// time.
func passing(err error) bool {
	return slices.ContainsFunc([]error{ErrExpired, ErrGivenUp, ErrNoMember, errNoQuorum, zk.ErrConnectionClosed},
		func(passes error) bool { return errors.Is(err, passes) })
}

// outage reports whether a session did not start because no server served it in time. Another
// try may succeed then. It is false if the servers answer and will never accept this client.
func outage(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, driver.ErrUnavailable): // it says so already
		return false
	case wire.Misconfigured(err), errors.Is(err, zk.ErrAuthFailed):
		return false
	case passing(err), ctx.Err() != nil:
		return true
	}
	return errors.Is(err, errNotReady) || errors.Is(err, errNotConnected) || errors.Is(err, zk.ErrNoServer)
}

// keep replaces the session whenever it is over. It makes the first try at once, unless
// the last session did not live long.
func (k *Keeper) keep(s *Session) {
	defer close(k.stopped)
	for {
		started := time.Now()
		select {
		case <-s.Status.Over():
		case <-k.ctx.Done():
			return // Close or Abandon takes care of the session
		}
		old, why := s, s.Status.Err()
		k.set(nil, why)
		k.cfg.Logger.Warn("zookeeper: session is over, starting another one", "session", hexID(old.Status.ID()), "error", why)
		k.cleanup.Go(func() { old.shutdown(!errors.Is(why, ErrExpired)) })

		retry, pause := k.retry, time.Duration(0)
		if time.Since(started) < k.cfg.Timeout {
			pause = retry.Next()
		}
		for s = nil; s == nil; pause = retry.Next() {
			select {
			case <-time.After(pause):
			case <-k.ctx.Done():
				return
			}
			var err error
			if s, err = start(k.ctx, &k.cfg); err != nil && k.ctx.Err() == nil {
				k.set(nil, err)
				k.cfg.Logger.Warn("zookeeper: no new session yet", "error", err)
			}
		}
		k.adopt(s)
	}
}

// adopt makes s the current session.
func (k *Keeper) adopt(s *Session) {
	k.set(s, nil)
	s.Status.announce(k.feed.tell)
	k.cfg.Logger.Info("zookeeper: session started", "session", hexID(s.Status.ID()), "timeout", s.Trust.Timeout())
}

// set changes the current session.
func (k *Keeper) set(s *Session, why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current, k.lastErr = s, why
	close(k.changed)
	k.changed = make(chan struct{})
}

// Usable returns the session if it can serve callers now, and driver.ErrUnavailable if
// not. It never waits.
func (k *Keeper) Usable() (*Session, error) {
	k.mu.Lock()
	s, lastErr := k.current, k.lastErr
	k.mu.Unlock()
	switch {
	case k.ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, ErrClosed)
	case s == nil:
		return nil, fmt.Errorf("%w: no session: %w", driver.ErrUnavailable, lastErr)
	}
	if err := s.Status.Usable(); err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	return s, nil
}

// AwaitUsable waits until callers can be served. It is false when ctx ends or the keeper
// is closed before that.
func (k *Keeper) AwaitUsable(ctx context.Context) bool {
	for {
		k.mu.Lock()
		s, changed := k.current, k.changed
		k.mu.Unlock()
		if s != nil {
			st := s.Status
			if st.await(ctx, func() (bool, error) { return st.trouble(true) == nil, st.why }) == nil {
				return true
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-k.ctx.Done():
			return false
		}
	}
}

// Current returns the present session, whether or not it can serve callers, or nil.
func (k *Keeper) Current() *Session {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

// Context ends when the keeper is closed.
func (k *Keeper) Context() context.Context { return k.ctx }

// Watch has f called with the present state and with every change. See zookeeper.Client.Watch.
func (k *Keeper) Watch(f func(Event)) (stop func()) {
	if f == nil {
		return func() {}
	}
	box := listener.NewMailbox(k.Listeners, f)
	k.feed.add(box)
	return func() {
		k.feed.remove(box)
		box.Stop()
	}
}

// Go runs f on a goroutine that Close waits for. f has to return when Context ends. Go
// returns false, and does nothing, when the keeper is closed.
func (k *Keeper) Go(f func()) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return false
	}
	k.cleanup.Go(f)
	return true
}

// Close waits for the background work, and closes the session. See zookeeper.Client.Close.
func (k *Keeper) Close(ctx context.Context) error {
	return k.end(ctx, ErrClosed, func(s *Session) error {
		err := s.Status.Await(ctx, k.Background.Idle())
		if err == nil {
			err = s.answers(ctx)
		}
		s.Trust.die(ErrClosed)
		s.shutdown(true)
		return err
	})
}

// answers returns an error if leases are held and the servers do not answer. Only the servers
// can give the locks back.
func (s *Session) answers(ctx context.Context) error {
	held := s.Trust.Held()
	if held == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := s.Pulse.Barrier(ctx); err != nil {
		return fmt.Errorf("%d locks are left to the end of the session: %w", held, err)
	}
	return nil
}

// Abandon drops the connection and stops all goroutines without closing the session. See
// zookeeper.Client.Abandon.
func (k *Keeper) Abandon() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = k.end(now, errAbandoned, func(s *Session) error {
		s.Status.tr.Shut()
		s.Trust.die(errAbandoned)
		s.shutdown(false)
		return nil
	})
}

// end stops the keeper, once. ctx bounds the waiting for listeners.
func (k *Keeper) end(ctx context.Context, why error, finish func(*Session) error) (err error) {
	k.mu.Lock()
	over := k.ctx.Err() != nil
	k.stop(why)
	k.mu.Unlock()
	if over {
		<-k.ended
		return nil
	}
	defer close(k.ended)
	<-k.stopped
	s := k.Current()
	k.set(nil, why)
	if s != nil {
		err = finish(s)
	}
	k.cleanup.Wait()
	if late := k.Listeners.Close(ctx); err == nil {
		err = late
	}
	return err
}

// Backoff is an exponential back-off with jitter. Each pause is a random time between
// half of a limit and the whole of it, and the limit doubles from First up to Max.
type Backoff struct {
	First, Max time.Duration

	last time.Duration // limit of the last pause
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	b.last = min(max(2*b.last, b.First), b.Max)
	return b.last/2 + rand.N(b.last/2+1)
}
