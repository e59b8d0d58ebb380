// Package background counts work that goes on when its caller has left, so that
// whoever ends its owner can wait for it, and give up waiting.
package background

import "sync"

// Tracker counts what is under way. The zero value counts nothing yet. It is safe
// for concurrent use, and other than with a [sync.WaitGroup] work may begin while
// somebody waits.
type Tracker struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed while n is 0; nil until somebody asks
}

// Add counts one more. Whoever calls it sees to it that Done is called once.
func (t *Tracker) Add() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		t.idle = nil // the old one says that it was idle once
	}
	t.n++
}

// Done counts one less. It panics where there is none.
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

// Idle returns a channel that is closed once nothing is under way. What begins
// after that does not open it again: who has to know asks anew.
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
