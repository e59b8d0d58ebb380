// Package held takes care of one ephemeral znode, from the first create until the znode is
// known to be gone. Locks, places in a line and locked elements of a queue are such znodes.
//
//	Table.Claim ──▶ Claim.Acquire ──▶ Lease ──▶ Release ──▶ the claim is given up
//	                     │             │            ▲
//	                     │             └── lost ────┘ one session time-out later
//	                     └── abandoned ──▶ undone ──▶ the claim is given up
//
// A [Claim] is the session's exclusive right to write at a path. It lasts from before the
// first create is sent until the znode is known to be gone. So the session never sends a
// create while one of its earlier writes at the path is unsettled. An [Attempt] makes the
// znode, and goes on when its caller has gone. A [Lease] stands for the znode while the
// session is trusted. The removal settles every lost reply by a deciding read, and never
// deletes a znode of another owner.
//
// A user of the package says with a [Znode] how its znode is made and removed.
//
// # Reading order
//
// table.go has the claims of a session. attempt.go makes the znode. lease.go and release.go are the
// lease and the removal of its znode. owner.go and client.go are shared by all znodes of a client.
// parents.go makes the znodes above others. move.go is for a znode that a marker replaces, and
// handle.go for the recipes and the queue.
package held
