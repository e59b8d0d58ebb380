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

// MaxReply bounds a reply. A list of 50,000 places fits, and so does the largest znode that
// servers usually allow.
const MaxReply = 4 << 20

// DefaultTick is the tickTime of ZooKeeper's sample configuration.
const DefaultTick = 2 * time.Second

// Config says how sessions are made. Every field is required, unless its comment allows a zero.
type Config struct {
	Servers     []string
	Dialer      *wire.Dialer
	Timeout     time.Duration // asked for
	Tick        time.Duration // tickTime of the servers, or 0 to find it out
	OpenTimeout time.Duration // bounds each start of a session
	Credentials []Credential  // may be empty
	ACL         []zk.ACL      // of the member znode and those above it
	Logger      *slog.Logger
	Now         leaseclock.Source

	// Members is the path of the sessions' member znodes.
	Members    string
	MemberData []byte

	// Prepare is called for each new session, after its first write is acknowledged and before
	// it serves callers. Its result is the session's Local. If it fails, the session is not
	// used. It may be nil.
	Prepare func(ctx context.Context, s *Session) (any, error)
}

// Credential is an identity, such as scheme "digest" with "user:password".
type Credential struct {
	Scheme string
	Secret []byte
}

// String leaves the secret out.
func (c Credential) String() string { return c.Scheme + ":***" }

// start connects and brings a session up, within Config.OpenTimeout.
func start(ctx context.Context, cfg *Config) (*Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.OpenTimeout, fmt.Errorf("%w within %v", errNotReady, cfg.OpenTimeout))
	defer cancel()
	s, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	if err := s.boot(ctx); err != nil {
		_, offline := s.requests.connection()
		why := s.Status.Err()
		if why != nil && !errors.Is(err, why) { // the call may have seen only a broken connection
			err = fmt.Errorf("%w: %w", why, err)
		}
		s.Trust.die(err)
		s.shutdown(offline == nil)
		return nil, err
	}
	return s, nil
}

// connect puts a session together and has the library begin to connect.
func connect(cfg *Config) (*Session, error) {
	st := &Status{log: cfg.Logger, now: cfg.Now, over: make(chan struct{}), changed: make(chan struct{})}
	st.tr = wire.NewTransport(cfg.Dialer, cfg.Timeout, cfg.Now)
	tr := &Trust{status: st, clock: clock{timeout: cfg.Timeout, tick: cfg.Tick}, holds: make(map[*Hold]struct{})}
	rq := &requests{
		status: st, trust: tr,
		member: &zk.SetDataRequest{Path: cfg.Members + "/" + rand.Text(), Data: cfg.MemberData, Version: -1},
	}
	b := &Writes{status: st, send: rq.send}
	rd := &Reads{status: st, requests: rq, slots: make(chan struct{}, 16)}
	ws := &Watches{status: st, requests: rq, reads: rd, all: make(map[WatchKey]*Watch)}
	rq.renewed = ws.fireAll
	s := &Session{
		Status: st, Trust: tr, Writes: b, Reads: rd, Watches: ws, requests: rq, cfg: cfg,
		Pulse: &Pulse{status: st, trust: tr, requests: rq, writes: b},
	}
	var err error
	rq.conn, s.ended, err = zk.Connect(cfg.Servers, cfg.Timeout,
		zk.WithDialer(st.tr.Dial),
		zk.WithHostProvider(new(wire.Hosts)),
		zk.WithEventCallback(ws.onEvent),
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
		// The library repeats a credential after a reconnect, but only after a first success.
		// So the credentials come before anything else.
		if err := s.within(ctx, func() error { return s.requests.conn.AddAuth(cred.Scheme, cred.Secret) }); err != nil {
			return fmt.Errorf("zookeeper: credential %v was refused: %w", cred, err)
		}
	}
	if err := s.join(ctx); err != nil {
		return err
	}
	s.run()
	// A late first write is not trusted. The next ones are.
	if err := s.Status.await(ctx, func() (bool, error) { return s.Status.trouble(true) == nil, s.Status.why }); err != nil {
		return fmt.Errorf("zookeeper: first write: %w", err)
	}
	if s.cfg.Prepare == nil {
		return nil
	}
	var err error
	s.local, err = s.cfg.Prepare(ctx, s)
	return err
}

func (s *Session) within(ctx context.Context, call func() error) error {
	_, err := Within(ctx, s.Status, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

func (s *Session) awaitConnected(ctx context.Context) error {
	st := s.Status
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
	granted := s.Trust.Timeout()
	tick, err := s.cfg.tickFor(ctx, granted)
	if err != nil {
		return err
	}
	if err := CheckTimeout(granted, tick); err != nil {
		return fmt.Errorf("%w; the server granted it, %v was asked for", err, s.cfg.Timeout)
	}
	s.Status.mu.Lock()
	defer s.Status.mu.Unlock()
	s.Trust.clock.tick = tick
	return nil
}

// tickFor chooses the tick for a session with the granted time-out. It takes the configured
// tick, or the default if the time-out leaves room for it. Otherwise it asks the servers.
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

// join creates the session's member znode. Only this write and the creates of the znodes above
// it have no pin. They do no harm, for three reasons. The transport keeps them within this
// session. The member's name is never used again. And the znodes above are persistent and the
// same for all clients. If the answer is lost, the client starts another session.
func (s *Session) join(ctx context.Context) error {
	err := s.create(ctx, s.Member(), s.cfg.MemberData, zk.FlagEphemeral)
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	if err := s.createParents(ctx, s.Member()); err != nil {
		return err
	}
	return s.create(ctx, s.Member(), s.cfg.MemberData, zk.FlagEphemeral)
}

// createParents makes the znodes above the member, before writes can be pinned. A client
// without the right to create one of them may still create one further down.
func (s *Session) createParents(ctx context.Context, path string) (denied error) {
	for i := 1; i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		err := s.create(ctx, path[:i], nil, zk.FlagPersistent)
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			denied = nil
		case errors.Is(err, ErrNotPermitted):
			denied = err
		case errors.Is(err, zk.ErrNoNode) && denied != nil:
			return denied
		default:
			return err
		}
	}
	return denied
}

// create makes a znode without a pin.
func (s *Session) create(ctx context.Context, path string, data []byte, flags int32) error {
	err := s.within(ctx, func() error {
		_, err := s.requests.conn.Create(path, data, flags, s.cfg.ACL)
		return err
	})
	if err = refusalOf(&zk.CreateRequest{Path: path}, err); err != nil && !Answered(err) {
		err = fmt.Errorf("zookeeper: create %s: %w", path, err)
	}
	return err
}

// debugLog takes the library's messages. They report every failed connect and much else. The
// important events are in this package's own log lines.
type debugLog struct{ log *slog.Logger }

// Printf implements zk.Logger.
func (d debugLog) Printf(format string, args ...any) {
	d.log.Debug("zookeeper: library: " + fmt.Sprintf(format, args...))
}
