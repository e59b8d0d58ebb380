package redis

import "sync"

// tracker counts background work, so that somebody can wait for its end and
// give up waiting.
type tracker struct {
	mu    sync.Mutex
	n     int
	empty chan struct{} // closed while n is 0
}

func newTracker() *tracker {
	t := &tracker{empty: make(chan struct{})}
	close(t.empty)
	return t
}

func (t *tracker) add() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		t.empty = make(chan struct{})
	}
	t.n++
}

func (t *tracker) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 {
		close(t.empty)
	}
}

// idle returns a channel that is closed when nothing is under way.
func (t *tracker) idle() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.empty
}
