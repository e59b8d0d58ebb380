package load

import (
	"sync"
	"sync/atomic"
	"time"
)

// trips counts the trips on the critical path of a request, as a Lamport clock does. A chunk that a service sends
// has a number one higher than the highest number of a reply that the service had by then. A reply has the number
// of the chunk that the server was sent last on the same connection. So the highest number of a reply is the length
// of the longest chain in which each request was sent after the reply to the one before. Requests that are under way at
// the same time, to one server or to several, have the same number. No time is measured.
type trips struct {
	mu       sync.Mutex
	highest  int64 // of the replies that services have
	counting bool
	reached  []time.Time // when the first, second and so on trip was complete
}

// beyond is more than the number of trips between two calls of begin could be. Chunks that are still under way at the
// second call have lower numbers than those that come after it, so they do not count.
const beyond = 1 << 32

func (t *trips) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.highest, t.counting, t.reached = t.highest+beyond, true, nil
}

// next is the number of a chunk that a service sends now.
func (t *trips) next() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.highest + 1
}

// replied notes that a service gets a reply now.
func (t *trips) replied(number int64, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if number <= t.highest {
		return
	}
	t.highest = number
	if t.counting {
		t.reached = append(t.reached, now)
	}
}

// until ends the count. What came after the answer of the service, such as the release of a lock in the background, was not
// on the critical path.
func (t *trips) until(answered time.Time) (complete int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counting = false
	for _, at := range t.reached {
		if !at.After(answered) {
			complete++
		}
	}
	return complete
}

// direction says how the chunks of one direction of a link are numbered.
type direction struct {
	number  func() int64
	deliver func(number int64)
}

// link is a connection of a service to a server.
type link struct {
	trips   *trips
	current atomic.Int64 // the number of the last request that the server was sent
}

func (l *link) asking() direction {
	return direction{number: l.trips.next, deliver: l.current.Store}
}

func (l *link) replying() direction {
	return direction{number: l.current.Load, deliver: func(number int64) { l.trips.replied(number, time.Now()) }}
}
