package idem

import (
	"context"
	"sync"
	"time"
)

// Running is what [Engine.Running] returns about the handlers that run under a lock.
type Running struct {
	Count  int
	Oldest time.Duration // the longest run time so far; 0 if no handler runs
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
	mu     sync.Mutex
	since  map[*run]time.Time
	closed bool
}

// handlerStarted counts a run, and reports it when it has run for long and again each time
// its age has doubled. ended ends that.
func (e *Engine) handlerStarted(ctx context.Context, run *run) (ended func()) {
	l := &e.running
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since[run] = run.started
	var timer *time.Timer
	if due := e.cfg.longRunning; due > 0 && !l.closed {
		timer = time.AfterFunc(due, func() {
			if !l.runs(run, e.work.hold) {
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

// runs reports whether a handler still runs and is to be reported, and calls hold if so.
// The engine waits for the run, so hold comes before Close can return.
func (l *running) runs(run *run, hold func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.since[run]; !ok || l.closed {
		return false
	}
	hold()
	return true
}

// close stops the reports. It does not wait for a report that is on its way.
func (l *running) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}
