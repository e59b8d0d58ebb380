package idem

import (
	"context"
	"sync"
	"time"
)

// timeout is a context with a deadline that costs a timer and a registration
// with its parent only where somebody asks for Done. Every request makes four
// of them, and in-process stores and locks never ask.
type timeout struct {
	context.Context // the parent
	at              time.Time

	mu      sync.Mutex
	full    context.Context // made by the first Done
	cancel  context.CancelFunc
	stopped bool
}

// withTimeout is [context.WithTimeout] as described at timeout. stop has to be
// called.
func withTimeout(parent context.Context, d time.Duration) *timeout {
	return &timeout{Context: parent, at: time.Now().Add(d)}
}

// Deadline returns the earlier one of the parent's and its own.
func (t *timeout) Deadline() (time.Time, bool) {
	if parent, ok := t.Context.Deadline(); ok && parent.Before(t.at) {
		return parent, true
	}
	return t.at, true
}

// Done returns the channel of a real context, made on the first call.
func (t *timeout) Done() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.full == nil {
		t.full, t.cancel = context.WithDeadline(t.Context, t.at)
		if t.stopped {
			t.cancel()
		}
	}
	return t.full.Done()
}

// Err agrees with Done wherever Done was asked for.
func (t *timeout) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.full != nil:
		return t.full.Err()
	case t.Context.Err() != nil:
		return t.Context.Err()
	case t.stopped:
		return context.Canceled
	case !time.Now().Before(t.at):
		return context.DeadlineExceeded
	}
	return nil
}

func (t *timeout) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	if t.cancel != nil {
		t.cancel()
	}
}
