// Package session keeps one ZooKeeper session and replaces it when it is over. It knows
// nothing of the locks and queues that are built on it.
//
// A [Keeper] holds the present [Session]. A session has these parts:
//
//   - [Writes] makes pinned writes. Waiting writes share a transaction.
//   - [Reads] makes two classes of read. Hint and Look return a [Hint], which may be old and
//     says where to look. Decide and DecideFor return [Decided], which shows every write that
//     was acknowledged before.
//   - [Watches] waits until a znode may have changed.
//   - [Pulse] has barriers. After one, all earlier requests have been applied or never will be.
//   - [Trust] is the lease clock. Hold registers a lease and tells it of the end of trust.
//     Trusted, Left and Stale read the clock.
//   - [Status] says whether the session is over or suspended, and waits for the end of that.
//     [Within] waits for a call without a context, as long as the session is trusted.
//
// # States
//
//	starting ──▶ up ◀──▶ suspended ──▶ over, and the keeper starts another session
//	              └────────────────────▲
//
// A session is up while it is connected, a pinned write was acknowledged over the present
// connection, and trust has not run out. A suspended session takes no new requests from
// callers, but goes on to settle what is open. A session is over for good when the server
// said so, when its member znode is gone, when nothing was acknowledged for too long, or
// on Close.
//
// # What is guaranteed
//
//   - A write is applied in this session or never. It is pinned to the session's own
//     ephemeral znode, and the transport never carries requests over into another session.
//   - A [Result] of Applied, Refused or Unsent is certain. Unknown is settled by a
//     deciding read, or by a barrier and then any read.
//   - Leases end before the servers could end the session, as long as the process runs.
//     See the type clock for the reasoning. Acknowledged writes alone renew the trust,
//     since a server that is cut off from its quorum goes on answering pings and reads.
//   - Trust is not granted and lost at the same time. Hold, the loss of all holds, and
//     the end of the session happen under one lock.
//   - Every call ends with its context, with the session's trust, or with the session.
//     Calls without a context are for goroutines that can wait.
//
// # What is not
//
//   - A watch may be woken without a change. It is never left asleep after one.
//   - A process that is paused past its session notices when it runs again.
//   - Clocks may differ in speed by 5 % at most.
//
// # Locks
//
// status.mu guards the connection, the lease clock and the holds. It is never held across
// a call to ZooKeeper or to the logger, because the library's callbacks take it. A lock is
// taken only while those to its left are held:
//
//	Writes.mu, Watches.mu ──▶ status.mu ──▶ the lost functions of holds, feed.mu ──▶ mailboxes
//
// Keeper.mu is taken alone.
//
// # Reading order
//
// errors.go and result.go say what an answer of the servers means. clock.go is the
// reasoning about trust. events.go, status.go and trust.go are the state of a session.
// requests.go sends pinned writes and follows the connections. writes.go makes them, batch.go and
// refused.go share transactions among them. read.go and watch.go ask the servers. pulse.go keeps the
// session alive. session.go and start.go put the parts together, and keeper.go replaces a
// session.
package session
