// Package wire makes the TCP and TLS connections of one ZooKeeper session, one after
// the other. It makes up for what the client library does not do by itself:
//
//   - A zk.Conn never gets a second session. After an expiry the library would open one
//     without telling, and send into it the requests that were queued for the old one.
//   - The whole handshake has a deadline.
//   - The session knows the time-out that the server granted.
//   - A session does not go back in time. Each connect carries the highest zxid of any
//     answer in this session, and a stale server refuses it.
//   - Server names are resolved anew at every connect.
//
// A [Dialer] opens one connection. A [Transport] is the library's dialer for one
// session. [Hosts] gives the library the servers by name.
//
// Read the files in this order: frames.go (frames on the wire), tls.go (one
// connection), probe.go (the servers' tick), transport.go (the connections of a
// session), conn.go (the stream of a connection).
package wire
