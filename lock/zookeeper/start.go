package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
)

// maxReply is the largest reply that is read: a line of 50,000, or a znode of
// the servers' usual most.
const maxReply = 4 << 20

// startSession connects and brings a session up, within Config.OpenTimeout.
func (c *Client) startSession(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.OpenTimeout, fmt.Errorf("not ready within %v", c.cfg.OpenTimeout))
	defer cancel()
	s := newSession(c)
	s.w = newWriter(s, c.cfg.memberPath(newUUID()), c.owner.encode())
	var err error
	s.conn, s.ended, err = zk.Connect(c.cfg.Servers, c.cfg.SessionTimeout,
		zk.WithDialer(s.tr.dial),
		zk.WithHostProvider(new(hosts)),
		zk.WithEventCallback(s.onEvent),
		zk.WithLogger(debugLog{c.cfg.Logger}),
		zk.WithLogInfo(false),
		zk.WithMaxBufferSize(maxReply))
	if err != nil {
		return nil, err
	}
	if err := s.boot(ctx); err != nil {
		s.mu.Lock()
		polite, why := s.connected, s.why
		s.mu.Unlock()
		if why != nil && !errors.Is(err, why) { // a call may only have seen the connection break
			err = fmt.Errorf("%w: %w", why, err)
		}
		s.die(err)
		s.shutdown(polite)
		return nil, err
	}
	return s, nil
}

// boot takes a session from connecting to up.
func (s *session) boot(ctx context.Context) error {
	if err := s.awaitConnected(ctx); err != nil {
		return err
	}
	if err := s.fitTick(ctx); err != nil {
		return err
	}
	for _, cred := range s.cfg.Credentials {
		// The library replays it after a reconnect, but only if it succeeded
		// once: so it comes before anything else.
		if err := s.present(ctx, cred); err != nil {
			return fmt.Errorf("zookeeper: credential %v was refused: %w", cred, err)
		}
	}
	if err := s.join(ctx); err != nil {
		return err
	}
	s.w.start()
	s.start(s.pulse)
	if _, err := within(ctx, s, func() (struct{}, error) { return struct{}{}, s.finalBarrier() }); err != nil {
		return fmt.Errorf("zookeeper: first write: %w", err)
	}
	if err := s.learnDomain(ctx); err != nil {
		return err
	}
	if err := s.agreeOnBase(ctx); err != nil {
		return err
	}
	// A first write that came late is not trusted, the ones after it are.
	_, err := within(ctx, s, func() (struct{}, error) { return struct{}{}, s.settled() })
	return err
}

// fitTick gives the clock the servers' tick, before it counts the first write.
func (s *session) fitTick(ctx context.Context) error {
	granted := s.timeout()
	tick, err := s.cfg.tickFor(ctx, granted)
	if err != nil {
		return err
	}
	if err := checkTimeout(granted, tick); err != nil {
		return fmt.Errorf("%w; the server granted it, %v was asked for", err, s.cfg.SessionTimeout)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock.tick = tick
	return nil
}

// present gives the server a credential, again where the answer was lost.
func (s *session) present(ctx context.Context, cred Credential) error {
	for {
		_, err := within(ctx, s, func() (struct{}, error) {
			return struct{}{}, s.conn.AddAuth(cred.Scheme, cred.Secret)
		})
		if err == nil || errors.Is(err, zk.ErrAuthFailed) || ctx.Err() != nil || s.reason() != nil {
			return err
		}
		if err := s.pause(); err != nil {
			return err
		}
	}
}

func (s *session) awaitConnected(ctx context.Context) error {
	for {
		s.mu.Lock()
		why, connected, changed := s.why, s.connected, s.changed
		s.mu.Unlock()
		if why != nil || connected {
			return why
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if err := s.tr.failure(); err != nil {
				return fmt.Errorf("no server reached: %w: %w", context.Cause(ctx), err)
			}
			return fmt.Errorf("no server reached: %w", context.Cause(ctx))
		}
	}
}

// join creates the session's member znode. This and the znodes above it are the
// only writes that cannot be pinned. That does no harm: the transport keeps
// them within this session, the member's name is never used again, and the
// others are persistent and the same for all.
func (s *session) join(ctx context.Context) error {
	path := s.w.pin.Path
	for {
		_, err := within(ctx, s, func() (string, error) {
			return s.conn.Create(path, s.w.pin.Data, zk.FlagEphemeral, s.cfg.ACL)
		})
		if errors.Is(err, zk.ErrNoNode) {
			if err = s.foundParents(ctx, path); err == nil {
				continue
			}
		}
		if err = refusalOf(&zk.CreateRequest{Path: path}, err); answered(err) {
			return err
		}
		if ctx.Err() != nil || s.reason() != nil {
			return fmt.Errorf("zookeeper: create %s: %w", path, err)
		}
		n, err := within(ctx, s, func() (hint, error) { return s.hint(path, ofNode) })
		switch {
		case err == nil && n.exists && n.session == s.sessionID():
			return nil
		case err == nil && n.exists:
			return fmt.Errorf("zookeeper: %s belongs to another session", path)
		case ctx.Err() != nil:
			return fmt.Errorf("zookeeper: create %s: %w", path, context.Cause(ctx))
		}
		if err := s.pause(); err != nil {
			return err
		}
	}
}

// foundParents makes the znodes above the member, before writes can be pinned.
func (s *session) foundParents(ctx context.Context, path string) (err error) {
	var denied error
	for i := 1; i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		_, err = within(ctx, s, func() (string, error) {
			return s.conn.Create(path[:i], nil, zk.FlagPersistent, s.cfg.ACL)
		})
		if errors.Is(err, zk.ErrNodeExists) {
			err = nil
		}
		// A client that may not create here may still create further down.
		if err = refusalOf(&zk.CreateRequest{Path: path[:i]}, err); errors.Is(err, ErrNotPermitted) {
			denied = err
			continue
		}
		if errors.Is(err, zk.ErrNoNode) && denied != nil {
			err = denied
		}
		if err != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("zookeeper: create the parents of %s: %w", path, err)
	}
	return nil
}

// learnDomain reads the ensemble's UUID, and gives it one if it has none.
func (s *session) learnDomain(ctx context.Context) error {
	path := s.cfg.domainPath()
	for {
		n, err := within(ctx, s, func() (decided, error) { return s.decide(path, ofNode) })
		switch {
		case err != nil:
			return err
		case n.exists && len(n.data) == 0:
			return fmt.Errorf("zookeeper: %s is empty, it should hold a UUID", path)
		case n.exists:
			s.domain = s.cfg.domainOf(string(n.data))
			return nil
		}
		_, err = within(ctx, s, func() (struct{}, error) {
			r := s.w.do(&zk.CreateRequest{Path: path, Data: []byte(newUUID()), Acl: s.cfg.ACL, Flags: zk.FlagPersistent})
			switch {
			case r.outcome == ended:
				return struct{}{}, fmt.Errorf("%w: %w", idem.ErrUnavailable, r.err)
			case r.outcome == refused && !r.refusedBy(zk.ErrNodeExists):
				return struct{}{}, fmt.Errorf("zookeeper: create %s: %w", path, r.err)
			}
			return struct{}{}, nil // whoever made it, or not: look again
		})
		if err != nil {
			return err
		}
	}
}

// timeout is the session time-out that the servers granted.
func (s *session) timeout() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.timeout
}

// debugLog takes the library's messages, which report every failed connect
// besides much else; what matters is logged by this package.
type debugLog struct{ log *slog.Logger }

// Printf implements zk.Logger.
func (d debugLog) Printf(format string, args ...any) {
	d.log.Debug("zookeeper: library: " + fmt.Sprintf(format, args...))
}
