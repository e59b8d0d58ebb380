package session

import (
	"math/rand/v2"
	"time"
)

// Backoff is an exponential back-off with jitter. Each pause is a random time between
// half of a limit and the whole of it, and the limit doubles from Base up to Max.
type Backoff struct {
	Base, Max time.Duration

	last time.Duration // limit of the last pause
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	b.last = min(max(2*b.last, b.Base), b.Max)
	return b.last/2 + rand.N(b.last/2+1)
}
