package leaseclock

import (
	"sync/atomic"
	"time"
)

// Manual is a clock for tests that moves only when it is told to. It is safe for
// concurrent use.
type Manual struct{ ns atomic.Int64 }

// NewManual returns a clock that stands at some moment.
func NewManual() *Manual {
	m := new(Manual)
	m.ns.Store(int64(time.Hour))
	return m
}

// Now is its [Source].
func (m *Manual) Now() Instant { return Instant{m.ns.Load()} }

// Advance moves the clock on. Timers do not notice, as after a suspension.
func (m *Manual) Advance(d time.Duration) { m.ns.Add(int64(d)) }
