package idem

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// work counts what an engine has under way, so that Close can wait for it:
// requests, and what goes on behind their answers.
type work struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{}      // closed when n is 0 after Close
	ctx    context.Context    // of the background; ends when Close gives up
	stop   context.CancelFunc // ends ctx
}

func (w *work) init() {
	w.idle = make(chan struct{})
	w.ctx, w.stop = context.WithCancel(context.Background())
}

// add is false once the engine is closed.
func (w *work) add() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.n++
	return true
}

// hold adds to work that is still counted.
func (w *work) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n++
}

func (w *work) done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n--
	if w.closed && w.n == 0 {
		close(w.idle)
	}
}

// inBackground runs fn after the answer of a request that is still counted.
func (w *work) inBackground(fn func(ctx context.Context)) {
	w.hold() // also after Close: it waits for this request, and so for fn
	go func() {
		defer w.done()
		fn(w.ctx)
	}()
}

// Close refuses new operations as unavailable and waits until those that run
// have been settled and saved, or ctx ends. The error says how many are left;
// then the locks must not be given back by closing their session: they protect
// what still runs. Saving in the background is given up.
func (e *Engine) Close(ctx context.Context) error {
	w := &e.work
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		if w.n == 0 {
			close(w.idle)
		}
	}
	w.mu.Unlock()
	defer w.stop()
	select {
	case <-w.idle:
		return nil
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		return fmt.Errorf("idem: %d operations still run: %w", w.n, ctx.Err())
	}
}

// backoff doubles a pause up to a limit.
type backoff struct{ first, most time.Duration }

func (b *backoff) next() time.Duration {
	d := b.first
	b.first = min(2*b.first, b.most)
	return d
}

// sleep is false where ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
