package leasing

import (
	"context"
	"sync"
)

// workers are the goroutines of a locker, and the calls that its end waits for.
type workers struct {
	ctx  context.Context // of the goroutines, until the end
	stop context.CancelFunc

	mu sync.Mutex // orders enter and end
	wg sync.WaitGroup
}

// spawn runs fn on a goroutine. It returns false after the end.
func (w *workers) spawn(fn func()) bool {
	running := w.enter()
	if running {
		go func() {
			defer w.leave()
			fn()
		}()
	}
	return running
}

// enter lets the end wait for the caller, until it calls leave. It returns false after the end.
func (w *workers) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return false
	}
	w.wg.Add(1)
	return true
}

func (w *workers) leave() { w.wg.Done() }

// end makes enter fail from now on, and waits for all goroutines and callers.
func (w *workers) end() {
	w.mu.Lock()
	w.stop()
	w.mu.Unlock()
	w.wg.Wait()
}
