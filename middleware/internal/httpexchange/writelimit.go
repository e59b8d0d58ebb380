package httpexchange

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// writeGrace is how long the writes of a streamed response may still take once the
// execution's context has ended.
const writeGrace = time.Second

// writeLimit ends the writes of a streamed response soon after the context of its
// execution. A client that reads nothing blocks them, and with them the handler,
// which holds the lock and which a shutdown waits for. A handler that honours its
// context has writeGrace to end its response.
//
// net/http lifts the deadline again before the next request of the connection.
type writeLimit struct {
	forget func() bool
	mu     sync.Mutex
	over   bool // the handler has returned, or has the connection
}

// start has the limit wait for the end of ctx, unless that is nil.
func (l *writeLimit) start(ctx context.Context, w http.ResponseWriter) {
	if ctx == nil {
		return
	}
	l.forget = context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.over { // else the deadline would be another response's
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeGrace))
		}
	})
}

// stop ends the wait. Nothing is done to the connection from then on.
func (l *writeLimit) stop() {
	if l.forget == nil || l.forget() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
}
