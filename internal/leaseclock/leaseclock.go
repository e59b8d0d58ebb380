// Package leaseclock is the clock of leases.
//
// A server lets a lock expire while the machine of its holder is suspended. On Linux,
// Go's monotonic clock in a [time.Time] stands still during that time, and so does
// every timer. A holder with that clock would trust its lease after the lock has gone
// to another owner. The clock of this package goes on.
//
// # What is guaranteed
//
//   - The clock never goes back, and setting the machine's wall clock does not
//     change it.
//   - On Linux it counts suspended time (CLOCK_BOOTTIME, see clock_gettime(2)). On
//     other systems it is Go's monotonic clock. Whether that counts suspended time
//     depends on the system.
//
// # What is not
//
// A virtual machine that was paused, migrated or restored from a checkpoint may not
// know how long that took. Its clocks, including this one, go on from where they
// were. The same is true for a container restored from a checkpoint. Then only the
// fence at the resource protects.
package leaseclock

import (
	"sync/atomic"
	"time"
)

// Instant is a moment on the lease clock. It is deliberately not a time.Time, so that
// it cannot be compared with one or set a timer by mistake. The zero Instant is no
// moment, and before all others.
type Instant struct{ ns int64 }

// Source returns the present moment. It is safe for concurrent use.
type Source func() Instant

// Now is the system's lease clock.
func Now() Instant { return Instant{sinceBoot()} }

// Add returns the moment d later.
func (i Instant) Add(d time.Duration) Instant { return Instant{i.ns + int64(d)} }

// Sub returns the time from j to i.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i.ns - j.ns) }

// Before reports whether i is earlier than j.
func (i Instant) Before(j Instant) bool { return i.ns < j.ns }

// After reports whether i is later than j.
func (i Instant) After(j Instant) bool { return i.ns > j.ns }

// IsZero reports whether i is the zero Instant.
func (i Instant) IsZero() bool { return i == Instant{} }

// Manual is a clock for tests. It moves only by Advance. It is safe for concurrent
// use.
type Manual struct{ ns atomic.Int64 }

// NewManual returns a clock at a moment after the zero Instant.
func NewManual() *Manual {
	m := new(Manual)
	m.ns.Store(int64(time.Hour))
	return m
}

// Now is its [Source].
func (m *Manual) Now() Instant { return Instant{m.ns.Load()} }

// Advance moves the clock forward. Timers do not move with it, as after a suspension.
func (m *Manual) Advance(d time.Duration) { m.ns.Add(int64(d)) }
