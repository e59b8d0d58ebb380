// Package wire makes the TCP and TLS connections of one ZooKeeper session, one after
// the other, and holds the client library to what it does not do by itself:
//
//   - A zk.Conn never gets a second session. After an expiry the library would open
//     one without telling, and send into it what was queued for the old one.
//   - The whole handshake has a deadline.
//   - The session time-out that the server granted is known.
//   - A session does not go back in time. Each connect carries the highest zxid that
//     any server has shown to this session, and a stale server refuses it.
//   - Server names are resolved anew at every connect.
//
// A [Dialer] opens one connection. A [Transport] is the library's dialer for one
// session. [Hosts] gives the library the servers by name.
//
// Read the files in this order: zxid.go (frames on the wire), tls.go (one connection),
// probe.go, hosts.go, transport.go, conn.go (what is read from and added to the stream).
package wire
