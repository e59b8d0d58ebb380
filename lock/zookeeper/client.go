package zookeeper

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Client keeps a session with a ZooKeeper ensemble, and replaces it when it is over. All
// leases end with their session, since another owner may hold their locks by then. It is
// safe for concurrent use.
type Client struct {
	cfg    Config
	core   held.Client
	domain atomic.Value          // string
	former atomic.Pointer[locks] // of the last session that could take locks
}

// Open connects and starts a session. It fails within Config.OpenTimeout, or when ctx ends.
// The error gives the reason, such as refused credentials, or a session time-out too short
// for the safety margin. It wraps driver.ErrUnavailable if no server served the client in
// time. Another try may succeed then. It does not wrap driver.ErrUnavailable if the
// configuration, the credentials or the certificates are wrong, or if a server is not a
// ZooKeeper. It wraps ErrNotPermitted if the client may not use a znode that it needs. Open
// warns of znodes that every client may change, see [Client.OpenParents].
//
// The caller ends the client with Close or Abandon.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, core: held.Client{
		Chroot: cfg.Chroot, ACL: cfg.ACL, Policy: held.RetryPolicy(cfg.Retry), Log: cfg.Logger, Now: cfg.now,
		Owner: held.Identity(), MaxClaims: cfg.MaxLocksPerSession,
	}}
	c.core.Keeper, err = session.Keep(ctx, session.Config{
		Servers: cfg.Servers, Dialer: cfg.dialer(), Timeout: cfg.SessionTimeout, Tick: cfg.TickTime, OpenTimeout: cfg.OpenTimeout,
		Credentials: cfg.credentials(), ACL: cfg.ACL, Logger: cfg.Logger, Now: cfg.now,
		Members: cfg.membersPath(), MemberData: c.core.Owner.Encode(), Prepare: c.prepare,
	}, session.Backoff{First: cfg.Retry.First, Max: cfg.Retry.Max})
	if err != nil {
		return nil, err
	}
	c.warnOfOpenParents()
	return c, nil
}

// ErrNotPermitted says that the servers refused a request because of a znode's ACL. The
// error names the znode. Another client made the znode, or the ACL is for other clients.
// Nothing was applied, and another try does not help.
var ErrNotPermitted = session.ErrNotPermitted

// Domain is the lock domain in the fence of every lease. It is a UUID kept in the ensemble
// (and chroot), followed by Config.Root if the root is not the default. A new ensemble in
// the place of the old one has another domain. An ensemble that came back with older data, for
// example from a backup, gets another one from the first client that notices, see
// [Locker.RenewDomain]. The others follow at once.
func (c *Client) Domain() string { return c.domain.Load().(string) }

// Close waits for the end of all releases in the background, and closes the session. The
// servers then remove all locks that are still held, and their leases are lost. If ctx ends
// first, or the servers do not answer, Close stops waiting, closes all the same, and returns
// an error. It tells the listeners and waits for them. No listener is called afterwards.
//
// So do not call it while handlers hold locks. If a process has to end while handlers run,
// call Abandon, or let the process end without a call. The locks then outlive the process by
// the session time-out, and this protects their keys.
func (c *Client) Close(ctx context.Context) error { return c.core.Keeper.Close(ctx) }

// Abandon drops the connection and stops all goroutines without closing the session. In
// this process all leases are lost at once. On the servers the locks stay until the
// session times out. Listeners get a second to hear of it.
func (c *Client) Abandon() { c.core.Keeper.Abandon() }

// ConnectionState is how a [Client] stands with the ensemble.
//
//	Connected, Reconnected ──▶ Lost, Suspended
//	Lost                   ──▶ Connected (a new session), Reconnected (the same)
//	Suspended              ──▶ Lost, Reconnected
//
// The states are those of Apache Curator's ConnectionState. Here acknowledged writes renew
// the trust in a session (see the package comment).
type ConnectionState uint8

const (
	// Connected means that a new session serves callers.
	Connected = ConnectionState(session.Connected)
	// Suspended means that the connection is gone, or is not confirmed yet. The session
	// may live on. Leases are still good, but the client gives out no new ones. New calls
	// fail. Calls under way wait, and so does a waiter whose turn comes meanwhile.
	Suspended = ConnectionState(session.Suspended)
	// Reconnected means that the same session serves callers again. After Suspended, all
	// leases are good. After Lost, all leases from before are lost.
	Reconnected = ConnectionState(session.Reconnected)
	// Lost means that the session is over. It may also live on, but no write was
	// acknowledged for too long. All leases are lost.
	Lost = ConnectionState(session.Lost)
)

// String returns "connected", "suspended", "reconnected" or "lost".
func (s ConnectionState) String() string { return session.State(s).String() }

// ConnectionEvent is a change of state.
type ConnectionEvent struct {
	State   ConnectionState // the new one
	Session string          // the session's ID, as in the servers' logs
	At      time.Time       // when this process knew of the change
	Err     error           // the reason, for Suspended and Lost
}

// Watch calls f with the present state, and then with every change, in order and one at a
// time, on a goroutine of its own. So f may be slow. Events wait for it without limit. If f
// panics, Watch logs the panic, and calls f for the next event all the same. f may use the
// client, but not close it. The last event is the one of [Client.Close], and Close waits
// for f.
//
// An event is news, not a guard. If work must stop when a lock is lost, watch [Lease.Done].
//
// stop ends the watch, without waiting for a call under way.
func (c *Client) Watch(f func(ConnectionEvent)) (stop func()) {
	return c.core.Keeper.Watch(func(ev session.Event) {
		f(ConnectionEvent{State: ConnectionState(ev.State), Session: ev.Session, At: ev.At, Err: ev.Err})
	})
}

// Space is a place for the objects of the packages recipes and queue. A [Client] is a Space,
// and so is a [Namespace]. There are no others.
type Space interface {
	space() (core *held.Client, prefix string)
}

func (c *Client) space() (*held.Client, string) {
	if c == nil {
		return nil, ""
	}
	return &c.core, ""
}

// The packages recipes and queue get the client below a Space by this function. Users of the library
// cannot call it.
func init() { //nolint:gochecknoinits // it has to be there before the first call of any package
	held.ClientOf = func(space any) (*held.Client, string) { return space.(Space).space() }
}

// Namespace is a view of a [Client] below a path. It keeps the names of applications apart
// that share an ensemble, or of modules that share a Client. It has no session and no state
// of its own. Its objects are those of the Client at the longer path.
//
// Locks of keys ([Client.Locker]) have a root of their own, Config.Root.
type Namespace struct {
	c      *Client
	prefix string
}

// Namespace returns the view below an absolute path under the chroot, such as "/billing".
// If the path is not valid, the constructors of all objects in the view return an error.
func (c *Client) Namespace(path string) Namespace { return Namespace{c, path} }

// Namespace returns the view below a path in this one.
func (n Namespace) Namespace(path string) Namespace { return Namespace{n.c, n.prefix + path} }

func (n Namespace) space() (*held.Client, string) {
	core, prefix := Space(n.c).space()
	return core, prefix + n.prefix
}
