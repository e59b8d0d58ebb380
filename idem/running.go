package idem

import (
	"context"
	"sync"
	"time"
)

// Running describes the handlers that run under a lock.
type Running struct {
	Count  int
	Oldest time.Duration // the longest run time so far; 0 without a handler
}

// Running counts the handlers of this engine. Each of them holds its key. It is cheap, and
// safe for concurrent use.
func (e *Engine) Running() Running {
	l := &e.running
	l.mu.Lock()
	defer l.mu.Unlock()
	r := Running{Count: len(l.since)}
	for _, since := range l.since {
		r.Oldest = max(r.Oldest, time.Since(since))
	}
	return r
}

// running has the handlers that run.
type running struct {
	mu    sync.Mutex
	since map[*run]time.Time
}

// handlerStarted counts a run. It reports the run after a long time, and again each time its
// age has doubled, until ended is called.
func (e *Engine) handlerStarted(ctx context.Context, run *run) (ended func()) {
	l := &e.running
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since[run] = run.started
	var timer *time.Timer
	if due := e.cfg.longRunning; due > 0 {
		timer = time.AfterFunc(due, func() {
			l.mu.Lock()
			_, runs := l.since[run]
			if runs {
				e.work.hold() // Close waits for the run, and so for this report
			}
			l.mu.Unlock()
			if !runs {
				return
			}
			defer e.work.done()
			age := time.Since(run.started)
			e.observe(ctx, run.request, Event{Type: EventLongRunning, Attempt: run.settlement.Attempt, State: StatePending, Duration: age})
			for due <= age {
				due *= 2
			}
			timer.Reset(due - age)
		})
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.since, run)
		if timer != nil {
			timer.Stop()
		}
	}
}
