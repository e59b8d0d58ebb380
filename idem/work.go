package idem

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

var errClosed = errors.New("idem: engine is closed: end the server before it")

// work counts the requests of an engine and their work in the background, so that Close can
// wait for them.
type work struct {
	mu       sync.Mutex
	n        int // requests, and work in the background
	handlers int // of these, the handlers that run or whose outcome is not stored yet
	closed   bool
	idle     chan struct{} // closed when n is 0 after Close

	closing context.Context    // ends when Close begins
	begin   context.CancelFunc // ends closing
	ctx     context.Context    // of the work in the background; ends when Close gives up
	stop    context.CancelFunc // ends ctx
}

func (w *work) init() {
	w.idle = make(chan struct{})
	w.closing, w.begin = context.WithCancel(context.Background())
	w.ctx, w.stop = context.WithCancel(context.Background())
}

// add counts more work. It returns false after Close.
func (w *work) add() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.n++
	return true
}

// hold counts more work for a request that is still counted.
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

// startHandler counts a handler that starts. It returns false after Close, and the handler must not start.
func (w *work) startHandler() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.handlers++
	return true
}

// holdHandler counts a handler whose outcome goes to the store in the background.
func (w *work) holdHandler() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handlers++
}

func (w *work) endHandler() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handlers--
}

// inBackground runs fn after the answer of a request that is still counted. It gives failed the panic
// of fn, which would otherwise end the process.
func (w *work) inBackground(fn func(ctx context.Context), failed func(error)) {
	w.hold() // also after Close, which waits for this request and then for fn
	go func() {
		defer w.done()
		if err := guarded(func() { fn(w.ctx) }); err != nil {
			failed(err)
		}
	}()
}

// Close refuses new operations as unavailable. No handler starts after Close has begun, and
// duplicates that wait are refused. Close waits until the outcomes of all running handlers are
// stored, or until ctx ends. Then it gives up the work in the background, and the error says how
// many operations are left. The caller must not close the session of their locks then, because
// the locks protect those operations. Without such an operation the error is nil, and nothing
// needs the locks any more. In the end Close closes what [WithCloser] has named, and ends the session of
// [WithLockSession].
func (e *Engine) Close(ctx context.Context) error {
	left := e.closeWork(ctx)
	err := left
	e.logLeft()
	for _, c := range e.cfg.closers {
		err = errors.Join(err, c.Close())
	}
	return errors.Join(err, e.endLocks(ctx, left != nil))
}

// endLocks ends the session of the locks. The locks of operations that are left have to stay.
func (e *Engine) endLocks(ctx context.Context, left bool) error {
	s := e.cfg.lockSession
	switch {
	case s == nil:
		return nil
	case left:
		s.Abandon()
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.lockTimeout)
	defer cancel()
	return s.Close(ctx)
}

func (e *Engine) closeWork(ctx context.Context) error {
	w := &e.work
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		w.begin()
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
		if w.handlers == 0 {
			return nil
		}
		return fmt.Errorf("idem: %d operations still run: %w", w.handlers, ctx.Err())
	}
}

// backoff doubles a pause up to a limit.
type backoff struct{ first, most time.Duration }

func (b *backoff) next() time.Duration {
	d := b.first
	b.first = min(2*b.first, b.most)
	return d
}

// sleep returns false if ctx ends first.
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

// Running counts the handlers of this engine. Each of them holds its key. It is cheap, and
// safe for concurrent use.
func (e *Engine) Running() telemetry.Running {
	handlers := &e.running
	handlers.mu.Lock()
	defer handlers.mu.Unlock()
	r := telemetry.Running{Count: len(handlers.reports)}
	for run := range handlers.reports {
		r.Oldest = max(r.Oldest, time.Since(run.started))
	}
	return r
}

// running has the handlers that run, and one timer for their reports. Nearly all handlers end
// before their first report is due, so a timer for each would be in vain.
type running struct {
	mu      sync.Mutex
	reports map[*run]report // the next one of each handler
	timer   *time.Timer     // nil if no handler ran when it fired last
}

// report is the next report of a handler that runs for long.
type report struct {
	ctx context.Context
	age time.Duration // of the handler when the report is due
}

// handlerStarted counts a run until handlerEnded. The run is reported after a long time, and
// again each time its age has doubled.
func (c *core) handlerStarted(ctx context.Context, run *run) {
	handlers := &c.running
	handlers.mu.Lock()
	defer handlers.mu.Unlock()
	handlers.reports[run] = report{ctx, c.cfg.longRunning}
	if c.cfg.longRunning > 0 && handlers.timer == nil {
		handlers.timer = time.AfterFunc(c.cfg.longRunning, c.reportRunning)
	}
}

func (c *core) handlerEnded(run *run) {
	handlers := &c.running
	handlers.mu.Lock()
	defer handlers.mu.Unlock()
	delete(handlers.reports, run)
}

// reportRunning makes the reports that are due, and sets the timer for the next ones. No report
// of a new handler is due before the timer, because it is never set to more than the time after
// which a handler runs for long.
func (c *core) reportRunning() {
	handlers := &c.running
	handlers.mu.Lock()
	pause, due := c.cfg.longRunning, []func(){}
	for run, next := range handlers.reports {
		age := time.Since(run.started)
		if age >= next.age {
			c.work.hold() // Close waits for the run, and so for this report
			due = append(due, func() {
				defer c.work.done()
				c.observe(next.ctx, run.request, telemetry.Event{Type: telemetry.EventLongRunning, Attempt: run.settlement.Attempt, State: driver.StatePending, Duration: age})
			})
		}
		for next.age <= age {
			next.age *= 2
		}
		handlers.reports[run] = next
		pause = min(pause, next.age-age)
	}
	handlers.timer = nil
	if len(handlers.reports) > 0 {
		handlers.timer = time.AfterFunc(pause, c.reportRunning)
	}
	handlers.mu.Unlock()
	for _, report := range due {
		report()
	}
}
