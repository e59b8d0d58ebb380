package redisserver

import (
	"sync"
	"time"
)

// Interval lets one caller through per interval, such as the one request that looks
// something up for all others. It is safe for concurrent use.
type Interval struct {
	every time.Duration
	now   func() time.Time

	mu   sync.Mutex
	next time.Time
}

// NewInterval returns an Interval whose first one begins now.
func NewInterval(every time.Duration, now func() time.Time) *Interval {
	return &Interval{every: every, now: now, next: now().Add(every)}
}

// Due reports whether the interval is over. It is true for one caller.
func (i *Interval) Due() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.now()
	if now.Before(i.next) {
		return false
	}
	i.next = now.Add(i.every)
	return true
}

// End ends the interval. The next call of Due returns true.
func (i *Interval) End() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.next = time.Time{}
}
