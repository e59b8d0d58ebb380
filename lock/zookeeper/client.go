package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/uuid"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Client keeps a session with a ZooKeeper ensemble, and replaces it when it is over. All
// leases end with their session, since another owner may hold their locks by then. It is
// safe for concurrent use.
type Client struct {
	cfg  Config
	core held.Client

	parentsDenied sync.Once // one warning

	mu     sync.Mutex
	domain string
}

// Open connects and starts a session. It fails within Config.OpenTimeout, or when ctx
// ends, with one error that gives the reason: no server reached, credentials refused, a
// session time-out too short for the safety margin. The error wraps idem.ErrUnavailable
// if no server served the client in time. Another try may succeed then. It does not wrap
// it if a setting is wrong: the configuration, credentials, certificates, a server that
// is no ZooKeeper. It wraps ErrNotPermitted if the client may not use a znode that it
// needs. Open warns of znodes that every client may change, see [Client.OpenParents].
//
// The caller calls Close; see there what happens without it.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, core: held.Client{
		Chroot: cfg.Chroot, ACL: cfg.ACL, Policy: held.RetryPolicy(cfg.Retry), Log: cfg.Logger, Now: cfg.now,
		Owner: held.Identity(), MaxClaims: cfg.MaxLocksPerSession,
	}}
	c.core.Keeper, err = session.Keep(ctx, c.sessionConfig(), session.Backoff{Base: cfg.Retry.Base, Max: cfg.Retry.Max})
	if err != nil {
		return nil, err
	}
	if s := c.core.Keeper.Current(); s != nil {
		c.warnOfOpenParents(s.Local().(*locks))
	}
	return c, nil
}

func (c *Client) sessionConfig() session.Config {
	cfg := &c.cfg
	return session.Config{
		Servers: cfg.Servers, Dialer: cfg.dialer(), Timeout: cfg.SessionTimeout, Tick: cfg.TickTime, OpenTimeout: cfg.OpenTimeout,
		Credentials: cfg.Credentials, ACL: cfg.ACL, Logger: cfg.Logger, Now: cfg.now,
		Members: cfg.membersPath(), MemberData: c.core.Owner.Encode(), Prepare: c.prepare,
	}
}

// ErrNotPermitted says that the servers refused a request because of a znode's ACL, which
// the error names. Another client made that znode, or made it for others. Nothing was
// applied, and another try does not help.
var ErrNotPermitted = session.ErrNotPermitted

// Root is what the packages recipes and queue make their objects in: a [Client], or a
// [Namespace] of one.
type Root = held.Root

// Base is for the packages recipes and queue.
func (c *Client) Base() (*held.Client, string) { return &c.core, "" }

// Locker is short for [NewLocker].
func (c *Client) Locker(opts ...LockerOption) *Locker { return NewLocker(c, opts...) }

// Domain is the lock domain, which the fence of every lease carries. It is a UUID kept in
// the ensemble (and chroot), followed by Config.Root unless that is the default. A new
// ensemble in the place of the old one has another domain.
func (c *Client) Domain() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.domain
}

// Close waits until the locks that are being released in the background are gone, and
// closes the session. The servers then remove all locks that are still held, and their
// leases are lost. If ctx ends first, or the servers do not answer, Close stops waiting,
// closes all the same, and returns an error. It also waits for listeners, which are told
// of all this. No listener is called afterwards.
//
// So do not call it while handlers run that hold locks. A process that has to end with
// handlers running calls Abandon, or nothing. Their locks then outlive the process by the
// session time-out, and this protects their keys.
func (c *Client) Close(ctx context.Context) error { return c.core.Keeper.Close(ctx) }

// Abandon drops the connection and stops all goroutines without closing the session. In
// this process all leases are lost at once. On the servers the locks stay until the
// session times out. Listeners get a second to hear of it.
func (c *Client) Abandon() { c.core.Keeper.Abandon() }

// learnDomain reads the ensemble's UUID, and gives it one if it has none.
func (s *locks) learnDomain(ctx context.Context) error {
	path := s.client.cfg.domainPath()
	data, err := s.agree(ctx, path, func() []byte { return []byte(uuid.New()) })
	switch {
	case err != nil:
		return err
	case len(data) == 0:
		return fmt.Errorf("zookeeper: %s is empty, it should hold a UUID", path)
	}
	s.Domain = s.client.cfg.domainOf(string(data))
	c := s.client
	c.mu.Lock()
	before := c.domain
	c.domain = s.Domain
	c.mu.Unlock()
	if before != "" && before != s.Domain {
		s.Log.Warn("zookeeper: the lock domain has changed, this is another ensemble", "before", before, "now", s.Domain)
	}
	return nil
}

// ErrBaseMismatch says that another Config.Base is in use with the locks below
// Config.Root. To change the base, stop all instances, delete the znode "base" below the
// root, and settle all open records first. Under another base the locks are of another
// domain.
var ErrBaseMismatch = errors.New("zookeeper: another Config.Base is in use with these locks")

// agreeOnBase compares the base with that of all clients that use the root. The first
// client writes it down. A client that may not read or write there has no use for the
// locks, and goes on.
func (s *locks) agreeOnBase(ctx context.Context) error {
	path, base := s.client.cfg.basePath(), s.client.cfg.Chroot+s.client.cfg.Base
	data, err := s.agree(ctx, path, func() []byte { return []byte(base) })
	switch {
	case session.Answered(err):
		return nil
	case err == nil && string(data) != base:
		return fmt.Errorf("%w: %s says %q, and this client has %q", ErrBaseMismatch, path, data, base)
	}
	return err
}

// agree returns the data of a persistent znode on which all clients agree. If there is no
// such znode it makes one, with the znodes above it.
func (s *locks) agree(ctx context.Context, path string, propose func() []byte) ([]byte, error) {
	for {
		n, err := session.Within(ctx, s.Session, func() (session.Decided, error) { return s.Decide(path, session.OfNode) })
		if err != nil || n.Exists {
			return n.Data, err
		}
		_, err = session.Within(ctx, s.Session, func() (struct{}, error) {
			r := s.Write(s.Persistent(path, propose()))
			switch {
			case r.RefusedBy(zk.ErrNoNode):
				return struct{}{}, s.EnsureParents(path)
			case r.Outcome == session.Ended:
				return struct{}{}, fmt.Errorf("%w: %w", idem.ErrUnavailable, r.Err)
			case r.Outcome == session.Refused && !r.RefusedBy(zk.ErrNodeExists):
				return struct{}{}, fmt.Errorf("zookeeper: create %s: %w", path, r.Err)
			}
			return struct{}{}, nil // made by this client or another, or not known: look again
		})
		if err != nil {
			return nil, err
		}
	}
}
