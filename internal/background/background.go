// Package background counts work that goes on after its caller has left. The owner
// of that work can wait for its end, and can give up waiting.
package background

import "sync"

// Tracker counts work under way. The zero value is ready to use. It is safe for
// concurrent use. Unlike with a [sync.WaitGroup], work may begin while an owner
// waits.
type Tracker struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed while n is 0, nil until Idle is called
}

// Add counts one more. The caller calls Done once for it.
func (t *Tracker) Add() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		t.idle = nil // the old channel is closed
	}
	t.n++
}

// Done counts one less. It panics at a count of 0.
func (t *Tracker) Done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.n--; {
	case t.n < 0:
		panic("background: Done without Add")
	case t.n == 0 && t.idle != nil:
		close(t.idle)
	}
}

// Idle returns a channel that closes once the count is 0. Work that begins later
// does not open it again. Call Idle again to wait for that work.
func (t *Tracker) Idle() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.idle == nil {
		t.idle = make(chan struct{})
		if t.n == 0 {
			close(t.idle)
		}
	}
	return t.idle
}
