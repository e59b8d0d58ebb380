// Package leaseclock tells the time by which leases are trusted.
//
// A server lets a lock expire while the machine of its holder is suspended. Go's
// monotonic clock, which a [time.Time] carries, stands still meanwhile on Linux,
// and so does every timer. A lease that was timed by it would be believed in after
// its lock has gone to another owner. The clock of this package goes on.
//
// # What is guaranteed
//
//   - The clock never goes back, and setting the machine's wall clock does not
//     change it.
//   - On Linux it counts the time in which the machine was suspended
//     (CLOCK_BOOTTIME; see clock_gettime(2)). On other systems it is Go's monotonic
//     clock, which counts that time where the system's own clock does.
//
// # What is not
//
// A virtual machine that was paused, migrated or restored from a checkpoint may not
// be told how long that took. Its clock, this one included, goes on from where it
// was. The same holds for a container that was restored from a checkpoint. Only the
// fence at the resource protects then.
package leaseclock

import "time"

// Instant is a moment on the lease clock. It is not a time.Time on purpose: it
// cannot be compared with one by mistake, nor be turned into a timer that is meant
// to fire at that moment. The zero Instant is before all others and stands for none.
type Instant struct{ ns int64 }

// Source tells the present moment. It is safe for concurrent use.
type Source func() Instant

// Now is the system's lease clock.
func Now() Instant { return Instant{sinceBoot()} }

// Add returns the moment d later.
func (i Instant) Add(d time.Duration) Instant { return Instant{i.ns + int64(d)} }

// Sub returns how long after j this moment is.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i.ns - j.ns) }

// Before reports whether i is earlier than j.
func (i Instant) Before(j Instant) bool { return i.ns < j.ns }

// After reports whether i is later than j.
func (i Instant) After(j Instant) bool { return i.ns > j.ns }

// IsZero reports whether i stands for no moment.
func (i Instant) IsZero() bool { return i == Instant{} }
