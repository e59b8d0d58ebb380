package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
)

// heldBack keeps log lines until it is released. So a start that fails writes one
// line, the error. It is safe for concurrent use.
type heldBack struct {
	to io.Writer

	mu       sync.Mutex
	kept     bytes.Buffer
	released bool
}

// Write implements [io.Writer].
func (h *heldBack) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return h.to.Write(p)
	}
	return h.kept.Write(p)
}

// release writes the kept lines, and passes on all later ones.
func (h *heldBack) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.released = true
	_, _ = h.kept.WriteTo(h.to)
}

// debugLog logs the messages of Redis's client library at debug level.
type debugLog struct{ *slog.Logger }

// Printf implements the library's logger.
func (l debugLog) Printf(ctx context.Context, format string, args ...any) {
	l.DebugContext(ctx, fmt.Sprintf(format, args...))
}
