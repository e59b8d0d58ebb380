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
// owner.go and client.go are shared by all znodes of a client. ending.go is the end of a
// lease. parents.go makes the znodes above others. table.go has the claims of a session.
// lease.go and release.go are the lease and its removal. attempt.go makes the znode.
package held
