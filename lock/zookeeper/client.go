package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Client keeps a session with a ZooKeeper ensemble, and replaces it when it is
// over: with all its leases, since another owner may hold their locks by then.
// It is safe for concurrent use.
type Client struct {
	cfg        Config
	owner      owner
	tries      atomic.Uint64
	background *tracker       // attempts and releases under way
	listeners  *listeners     // of the application
	connection connection     // what they know of the session
	cleanup    sync.WaitGroup // shutdowns of sessions that are over

	parentsDenied sync.Once // one warning

	ctx     context.Context // ends with Close or Abandon
	stop    context.CancelCauseFunc
	stopped chan struct{} // closed when keep has returned
	ended   chan struct{} // closed when Close or Abandon is through

	mu      sync.Mutex
	current *session      // nil while there is none
	changed chan struct{} // closed and replaced when current is
	closing bool
	domain  string
	lastErr error // why there is no session
}

// Open connects and starts a session. It fails within Config.OpenTimeout, or
// when ctx ends, with one error that says why: no server reached, credentials
// refused, a session time-out too short for the safety margin. It wraps
// idem.ErrUnavailable where no server served the client in time, so that it is
// worth trying again, and does not where a setting is wrong: the configuration,
// credentials, certificates, a server that is no ZooKeeper. It wraps
// ErrNotPermitted where znodes that it needs are somebody else's, and warns of
// those that are everybody's, see [Client.OpenParents].
//
// The caller calls Close; see there for what not calling it means.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, owner: identity(), background: newTracker(), listeners: newListeners(cfg.Logger), stopped: make(chan struct{}), ended: make(chan struct{}), changed: make(chan struct{})}
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.OpenTimeout, fmt.Errorf("not ready within %v", cfg.OpenTimeout))
	defer cancel()
	s, err := c.startSession(ctx)
	for passing(err) && ctx.Err() == nil {
		time.Sleep(20*time.Millisecond + rand.N(20*time.Millisecond))
		s, err = c.startSession(ctx)
	}
	if err != nil {
		c.stop(err)
		if outage(ctx, err) {
			err = fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
		}
		return nil, fmt.Errorf("zookeeper: open %v: %w", cfg.Servers, err)
	}
	c.adopt(s)
	go c.keep(s)
	c.warnOfOpenParents(s)
	return c, nil
}

// passing says that a session did not start for a reason that may be over soon:
// a server that is just joining its ensemble refuses sessions that it has
// granted a moment ago, and one that is slow may not answer in time.
func passing(err error) bool {
	return errors.Is(err, errExpired) || errors.Is(err, errGivenUp) || errors.Is(err, errNoMember)
}

// outage says that a session did not start because no server served it in time,
// which another try may find otherwise. It is not said of servers that answer and
// will not have this client, whatever it tries.
func outage(ctx context.Context, err error) bool {
	switch {
	case errors.Is(err, idem.ErrUnavailable): // it says so already
		return false
	case wrongTLS(err), errors.Is(err, errNoZooKeeper), errors.Is(err, zk.ErrAuthFailed):
		return false
	case passing(err), ctx.Err() != nil:
		return true
	}
	return errors.Is(err, errNotConnected) || errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrNoServer)
}

// Locker is short for [NewLocker].
func (c *Client) Locker(opts ...LockerOption) *Locker { return NewLocker(c, opts...) }

// Domain is the lock domain, which the fence of every lease carries: a UUID kept
// in the ensemble (and chroot), followed by Config.Root unless that is the
// default. An ensemble that was rebuilt has another one.
func (c *Client) Domain() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.domain
}

// usable returns the session if it can serve callers now, ErrUnavailable if
// not. It never waits.
func (c *Client) usable() (*session, error) {
	c.mu.Lock()
	s, closing, lastErr := c.current, c.closing, c.lastErr
	c.mu.Unlock()
	switch {
	case closing:
		return nil, fmt.Errorf("%w: %w", idem.ErrUnavailable, errClosed)
	case s == nil:
		return nil, fmt.Errorf("%w: no session: %w", idem.ErrUnavailable, lastErr)
	}
	if err := s.usable(); err != nil {
		return nil, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
	}
	return s, nil
}

// keep replaces the session whenever it is over.
func (c *Client) keep(s *session) {
	defer close(c.stopped)
	for s != nil {
		started := time.Now()
		select {
		case <-s.over:
		case <-c.ctx.Done():
			return // Close or Abandon sees to the session
		}
		why := s.reason()
		c.mu.Lock()
		c.setCurrent(nil)
		c.lastErr = why
		c.mu.Unlock()
		c.cfg.Logger.Warn("zookeeper: session is over, starting another one", "session", hexID(s.sessionID()), "error", why)
		old := s
		c.cleanup.Go(func() { old.shutdown(!errors.Is(why, errExpired)) })
		s = c.restart(time.Since(started) < c.cfg.SessionTimeout)
	}
}

// restart tries to get a session until it has one, or returns nil when the
// client is closed. hasty says that the last one did not live long.
func (c *Client) restart(hasty bool) *session {
	pause := backoff{c.cfg.Retry, 0}
	if !hasty {
		pause.last = -1 // the first try comes at once
	}
	for {
		select {
		case <-time.After(pause.next()):
		case <-c.ctx.Done():
			return nil
		}
		s, err := c.startSession(c.ctx)
		if err == nil {
			c.adopt(s)
			return s
		}
		if c.ctx.Err() != nil {
			return nil
		}
		c.mu.Lock()
		c.lastErr = err
		c.mu.Unlock()
		c.cfg.Logger.Warn("zookeeper: no new session yet", "error", err)
	}
}

// adopt makes s the session that serves callers.
func (c *Client) adopt(s *session) {
	c.mu.Lock()
	before := c.domain
	c.setCurrent(s)
	c.domain = s.domain
	c.mu.Unlock() // callers must not wait for a logger
	s.announce()
	if before != "" && before != s.domain {
		c.cfg.Logger.Warn("zookeeper: the lock domain has changed, this is another ensemble", "before", before, "now", s.domain)
	}
	c.cfg.Logger.Info("zookeeper: session started", "session", hexID(s.sessionID()), "timeout", s.timeout(), "domain", s.domain)
}

// setCurrent changes the session that serves callers. Needs mu.
func (c *Client) setCurrent(s *session) {
	c.current = s
	close(c.changed)
	c.changed = make(chan struct{})
}

// Close waits until locks being released in the background are gone, and closes
// the session; all locks that are still held are given back at once, and their
// leases lost. When ctx ends first, or the servers do not answer, it stops
// waiting and closes all the same; it returns an error then. It waits for
// listeners as well, which are told of all this; none is called afterwards.
//
// So do not call it while handlers run that hold locks. A process that has to
// end with handlers running calls Abandon, or nothing: their locks then outlive
// it by the session time-out, which is what protects their keys.
func (c *Client) Close(ctx context.Context) error {
	return c.end(ctx, errClosed, func(s *session) error {
		err := s.awaitIdle(ctx, c.background)
		if err == nil {
			err = s.answers(ctx)
		}
		s.die(errClosed)
		s.shutdown(true)
		return err
	})
}

// Abandon drops the connection and stops all goroutines without closing the
// session. All leases are lost at once as far as this process is concerned; on
// the servers the locks stay until the session times out. Listeners are given a
// second to hear of it.
func (c *Client) Abandon() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.end(now, errAbandoned, func(s *session) error {
		s.tr.shut()
		s.die(errAbandoned)
		s.shutdown(false)
		return nil
	})
}

// end stops the client, once. ctx bounds the waiting for listeners.
func (c *Client) end(ctx context.Context, why error, finish func(*session) error) (err error) {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		<-c.ended
		return nil
	}
	defer close(c.ended)
	c.closing = true
	c.mu.Unlock()
	c.stop(why)
	<-c.stopped
	c.mu.Lock()
	s := c.current
	c.setCurrent(nil)
	c.lastErr = why
	c.mu.Unlock()
	if s != nil {
		err = finish(s)
	}
	c.cleanup.Wait()
	if deaf := c.listeners.close(ctx); err == nil {
		err = deaf
	}
	return err
}

// spawn runs f on a goroutine that Close waits for, and that ends with c.ctx. It
// does nothing, and returns false, when the client is closed.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return false
	}
	c.cleanup.Go(f)
	return true
}

// answers returns an error if locks are held and the servers, who are to give
// them back, are not heard of.
func (s *session) answers(ctx context.Context) error {
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	if held == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := s.barrier(ctx); err != nil {
		return fmt.Errorf("%d locks are left to the end of the session: %w", held, err)
	}
	return nil
}

// awaitIdle waits for background work as long as it can get anywhere.
func (s *session) awaitIdle(ctx context.Context, t *tracker) error {
	return s.await(ctx, t.idle())
}
