package zookeeper

import "github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"

// ConnectionState is how a [Client] stands with the ensemble. Its String is the state's
// name in lower case.
//
//	Connected, Reconnected ──▶ Lost, Suspended
//	Lost                   ──▶ Connected (a new session), Reconnected (the same)
//	Suspended              ──▶ Lost, Reconnected
//
// The states are those of Apache Curator's ConnectionState, for sessions whose trust is
// counted by acknowledged writes (see the package comment).
type ConnectionState = session.State

const (
	// Connected says that a new session serves callers.
	Connected = session.Connected
	// Suspended says that the connection is gone, or is not confirmed yet. The session
	// may live on. Leases are still good, but new ones cannot be had.
	Suspended = session.Suspended
	// Reconnected says that the same session serves callers again. After Suspended, all
	// leases are good. After Lost, all leases from before are lost.
	Reconnected = session.Reconnected
	// Lost says that the session is over, or that no write was acknowledged for so long
	// that it may be. All leases are lost.
	Lost = session.Lost
)

// ConnectionEvent is a change of state: the State, the Session's ID as in the servers'
// logs, At what time this process knew, and for Suspended and Lost the reason, Err.
type ConnectionEvent = session.Event

// Watch has f called with the present state, and then with every change, in order and one
// at a time, on a goroutine of its own. So f may be slow. Events wait for it without
// limit. If it panics, that is logged, and f is called for the next event all the same. It
// may use the client, but not close it. The last event is that of [Client.Close], which
// waits for f.
//
// An event is news, not a guard. Work that must stop when a lock is lost watches
// [Lease.Done].
//
// stop ends it, without waiting for a call that is under way.
func (c *Client) Watch(f func(ConnectionEvent)) (stop func()) { return c.core.Keeper.Watch(f) }
