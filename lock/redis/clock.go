package redislock

import "time"

// Redis lets a lock expire one time to live after it has received the request
// that took or renewed it, by its own clock. A lease is trusted for nine tenths
// of that, counted from before the request was sent, by the lease clock, which goes
// on while the machine is suspended:
//
//	sent ──── trusted: 9/10 ────▶ Done        ▼ another owner at the earliest
//	   └─ received ──── time to live: 10/10 ─┘
//
// Half of the tenth in between is for clocks that run at different speeds; the
// other half is for a timer that fires late, and for the holder to act on it.

// trustOf is for how long a lease is trusted after the sending of what renewed it.
func trustOf(ttl time.Duration) time.Duration { return ttl - ttl/10 }

// heartbeatOf is the age at which a lease is renewed. Two renewals may fail
// before it is lost.
func heartbeatOf(ttl time.Duration) time.Duration { return ttl / 3 }

// tickOf is the pause between two looks at what has come of that age.
func tickOf(ttl time.Duration) time.Duration { return ttl / 20 }

// patienceOf bounds a request that nobody waits for: a renewal, or a release in
// the background.
func patienceOf(ttl time.Duration) time.Duration { return min(ttl/5, 2*time.Second) }

// expiryOf is after how long a lock surely exists no more once the last request
// of its owner was sent, those that are still on their way aside.
func expiryOf(ttl time.Duration) time.Duration { return ttl + ttl/4 }
