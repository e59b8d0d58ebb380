// Package simzk is a ZooKeeper ensemble in memory. It speaks the wire protocol of
// ZooKeeper 3.8, so that clients run against it unchanged. It is for simulations in a
// bubble of testing/synctest.
//
// # What it does
//
//   - One server leads. It orders all writes in a log, gives them zxids, and decides
//     their outcome. The other servers apply the log later, each at its own pace.
//   - A write is committed only while most of the servers can be reached by the leader.
//     The server of the client answers when it has applied the write.
//   - Reads are answered by the server of the client, from what it has applied. So they
//     may show the past. A server refuses a client that has seen more than the server.
//   - The leader expires sessions. Followers tell it every half tick which sessions they
//     have heard of. A session belongs to the server it connected to last, and requests
//     from another server end that connection.
//   - Watches, ephemeral and sequential znodes, containers, Multi and setWatches behave as
//     in the real server. The test of this package holds the two against each other.
//
// # Faults
//
// Isolate cuts a server off from the others. A follower goes on answering reads and pings
// from its past until it notices. If the leader is cut off, the others elect another one,
// and writes that were under way are committed or lost. Crash stops a server for a time. It
// keeps its disk. ExpireSessionOf ends sessions, as an operator may do.
//
// # What it leaves out
//
// ACLs are stored and returned and not checked, every identity is accepted, and there are
// no quotas, no TTL znodes, no sync and no reconfiguration.
//
// # Reading order
//
// jute.go reads and writes messages. tree.go has the znodes. prepare.go is how the
// leader judges a write. ensemble.go orders and commits writes, session.go keeps sessions,
// server.go applies the log, conn.go and reads.go serve one client, and faults.go breaks things.
package simzk
