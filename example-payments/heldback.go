package main

import (
	"bytes"
	"io"
	"sync"
)

// heldBack keeps what is logged until it is released: where the start fails,
// the one line that says why is not to be searched for among others. It is
// safe for concurrent use.
type heldBack struct {
	to io.Writer

	mu       sync.Mutex
	kept     bytes.Buffer
	released bool
}

// Write keeps or passes on.
func (h *heldBack) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return h.to.Write(p)
	}
	return h.kept.Write(p)
}

// release passes on what was kept, and all that follows.
func (h *heldBack) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.released = true
	_, _ = h.kept.WriteTo(h.to) // nobody is left to tell
}
