package session

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/wire"
)

// MaxReply is the largest reply that is read: a list of 50,000 places, or the largest
// znode that servers usually allow.
const MaxReply = 4 << 20

// DefaultTick is the tickTime of ZooKeeper's sample configuration.
const DefaultTick = 2 * time.Second

// Config says how sessions are made. Nothing in it may be left zero, except where it
// says so.
type Config struct {
	Servers     []string
	Dialer      *wire.Dialer
	Timeout     time.Duration // asked for
	Tick        time.Duration // tickTime of the servers; 0: find out
	OpenTimeout time.Duration // bounds each start of a session
	Credentials []Credential  // may be empty
	ACL         []zk.ACL      // of the member znode and those above it
	Logger      *slog.Logger
	Now         leaseclock.Source

	// Members is the path below which the sessions have their member znodes.
	Members    string
	MemberData []byte

	// Prepare is called for each new session, once its writes are acknowledged and
	// before it serves callers. What it returns is the session's Local. An error keeps
	// the session from being used. It may be nil.
	Prepare func(ctx context.Context, s *Session) (any, error)
}

// Credential is an identity, such as scheme "digest" with "user:password".
type Credential struct {
	Scheme string
	Secret []byte
}

// LogValue keeps the secret out of logs.
func (c Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }

// String keeps the secret out of logs.
func (c Credential) String() string { return c.Scheme + ":***" }

// start connects and brings a session up, within Config.OpenTimeout.
func start(ctx context.Context, cfg *Config) (*Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.OpenTimeout, fmt.Errorf("not ready within %v", cfg.OpenTimeout))
	defer cancel()
	s, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	if err := s.boot(ctx); err != nil {
		_, offline := s.reader.connection()
		why := s.Err()
		if why != nil && !errors.Is(err, why) { // a call may only have seen the connection break
			err = fmt.Errorf("%w: %w", why, err)
		}
		s.die(err)
		s.shutdown(offline == nil)
		return nil, err
	}
	return s, nil
}

// connect puts a session together and has the library begin to connect.
func connect(cfg *Config) (*Session, error) {
	st := &status{log: cfg.Logger, now: cfg.Now, over: make(chan struct{}), changed: make(chan struct{})}
	tr := &trust{status: st, clock: clock{timeout: cfg.Timeout, tick: cfg.Tick}, holds: make(map[*Hold]struct{})}
	l := &link{trust: tr}
	st.tr = wire.NewTransport(cfg.Dialer, cfg.Timeout, cfg.Now)
	rq := &requests{trust: tr, slots: make(chan struct{}, 16)}
	member := &zk.SetDataRequest{Path: cfg.Members + "/" + rand.Text(), Data: cfg.MemberData, Version: -1}
	s := &Session{
		status: st, trust: tr, link: l, cfg: cfg,
		reader:  &reader{rq},
		watches: &watches{reader: &reader{rq}, all: make(map[watchKey]*Watch)},
	}
	s.pulse = &pulse{pin: &pin{requests: rq, member: member, renewed: s.fireAll}, poke: make(chan struct{}, 1)}
	s.batcher = newBatcher(s.pulse.send, st.over, st.Err)
	tr.wake, l.fire = s.wakeUp, s.watches.on
	var err error
	rq.conn, s.ended, err = zk.Connect(cfg.Servers, cfg.Timeout,
		zk.WithDialer(st.tr.Dial),
		zk.WithHostProvider(new(wire.Hosts)),
		zk.WithEventCallback(l.onEvent),
		zk.WithLogger(debugLog{cfg.Logger}),
		zk.WithLogInfo(false),
		zk.WithMaxBufferSize(MaxReply))
	return s, err
}

// boot takes a session from connecting to up.
func (s *Session) boot(ctx context.Context) error {
	if err := s.awaitConnected(ctx); err != nil {
		return err
	}
	if err := s.fitTick(ctx); err != nil {
		return err
	}
	for _, cred := range s.cfg.Credentials {
		// The library repeats it after a reconnect, but only if it succeeded once. So
		// it comes before anything else.
		if err := s.present(ctx, cred); err != nil {
			return fmt.Errorf("zookeeper: credential %v was refused: %w", cred, err)
		}
	}
	if err := s.join(ctx); err != nil {
		return err
	}
	s.run()
	if _, err := Within(ctx, s, func() (struct{}, error) { return struct{}{}, s.FinalBarrier() }); err != nil {
		return fmt.Errorf("zookeeper: first write: %w", err)
	}
	if s.cfg.Prepare != nil {
		var err error
		if s.local, err = s.cfg.Prepare(ctx, s); err != nil {
			return err
		}
	}
	// A first write that came late is not trusted. The next ones are.
	_, err := Within(ctx, s, func() (struct{}, error) { return struct{}{}, s.Settled() })
	return err
}

func (s *Session) awaitConnected(ctx context.Context) error {
	st := s.status
	err := st.await(ctx, func() (bool, error) { return st.connected, st.why })
	if err == nil || st.Err() != nil {
		return err
	}
	if failure := st.tr.Failure(); failure != nil {
		err = fmt.Errorf("%w: %w", err, failure)
	}
	return fmt.Errorf("no server reached: %w", err)
}

// fitTick gives the clock the servers' tick before it counts the first write.
func (s *Session) fitTick(ctx context.Context) error {
	granted := s.Timeout()
	tick, err := s.cfg.tickFor(ctx, granted)
	if err != nil {
		return err
	}
	if err := CheckTimeout(granted, tick); err != nil {
		return fmt.Errorf("%w; the server granted it, %v was asked for", err, s.cfg.Timeout)
	}
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	s.clock.tick = tick
	return nil
}

// tickFor chooses the tick for a session that the servers granted: the configured one,
// or the default if the session leaves room for it, or what the servers tell.
func (c *Config) tickFor(ctx context.Context, granted time.Duration) (time.Duration, error) {
	switch {
	case c.Tick != 0:
		return c.Tick, nil
	case CheckTimeout(granted, DefaultTick) == nil:
		return DefaultTick, nil
	}
	least, err := c.Dialer.LeastSession(ctx, c.Servers)
	return min(DefaultTick, least/2), err
}

// present gives the server a credential, and again if the answer was lost.
func (s *Session) present(ctx context.Context, cred Credential) error {
	for {
		_, err := Within(ctx, s, func() (struct{}, error) {
			return struct{}{}, s.reader.conn.AddAuth(cred.Scheme, cred.Secret)
		})
		if err == nil || errors.Is(err, zk.ErrAuthFailed) || ctx.Err() != nil || s.Err() != nil {
			return err
		}
		if err := s.Pause(); err != nil {
			return err
		}
	}
}

// join creates the session's member znode. This write and those of the znodes above it
// are the only ones that are not pinned. That does no harm. The transport keeps them
// within this session, the member's name is never used again, and the znodes above are
// persistent and the same for all clients.
func (s *Session) join(ctx context.Context) error {
	path := s.Member()
	for {
		err := s.create(ctx, path, s.cfg.MemberData, zk.FlagEphemeral)
		if errors.Is(err, zk.ErrNoNode) {
			if err = s.createParents(ctx, path); err == nil {
				continue
			}
		}
		if Answered(err) {
			return err
		}
		if ctx.Err() != nil || s.Err() != nil {
			return fmt.Errorf("zookeeper: create %s: %w", path, err)
		}
		n, err := Within(ctx, s, func() (Hint, error) { return s.Hint(path, OfNode) })
		switch {
		case err == nil && n.Exists && n.Session == s.ID():
			return nil
		case err == nil && n.Exists:
			return fmt.Errorf("zookeeper: %s belongs to another session", path)
		case ctx.Err() != nil:
			return fmt.Errorf("zookeeper: create %s: %w", path, context.Cause(ctx))
		}
		if err := s.Pause(); err != nil {
			return err
		}
	}
}

// createParents makes the znodes above the member, before writes can be pinned.
func (s *Session) createParents(ctx context.Context, path string) (err error) {
	var denied error
	for i := 1; i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		err = s.create(ctx, path[:i], nil, zk.FlagPersistent)
		switch {
		case errors.Is(err, zk.ErrNodeExists):
			err = nil
		case errors.Is(err, ErrNotPermitted): // it may still be permitted further down
			denied = err
			continue
		case errors.Is(err, zk.ErrNoNode) && denied != nil:
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

// create makes a znode without a pin.
func (s *Session) create(ctx context.Context, path string, data []byte, flags int32) error {
	_, err := Within(ctx, s, func() (string, error) { return s.reader.conn.Create(path, data, flags, s.cfg.ACL) })
	return refusalOf(&zk.CreateRequest{Path: path}, err)
}

// debugLog takes the library's messages. They report every failed connect and much
// else. This package logs what matters.
type debugLog struct{ log *slog.Logger }

// Printf implements zk.Logger.
func (d debugLog) Printf(format string, args ...any) {
	d.log.Debug("zookeeper: library: " + fmt.Sprintf(format, args...))
}
