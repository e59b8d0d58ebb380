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
	r := Running{Count: len(l.runs)}
	for run := range l.runs {
		r.Oldest = max(r.Oldest, time.Since(run.started))
	}
	return r
}

// running has the handlers that run, and one timer for their reports. Nearly all handlers end
// before their first report is due, so a timer for each would be in vain.
type running struct {
	mu    sync.Mutex
	runs  map[*run]report
	timer *time.Timer // nil if no handler has run since the last look
}

// report is the next report of a handler that runs for long.
type report struct {
	ctx context.Context
	due time.Duration // age of the handler
}

// handlerStarted counts a run until handlerEnded. The run is reported after a long time, and
// again each time its age has doubled.
func (e *Engine) handlerStarted(ctx context.Context, run *run) {
	l := &e.running
	l.mu.Lock()
	defer l.mu.Unlock()
	due := e.cfg.longRunning
	l.runs[run] = report{ctx, due}
	if due > 0 && l.timer == nil {
		l.timer = time.AfterFunc(due, e.reportRunning)
	}
}

func (e *Engine) handlerEnded(run *run) {
	l := &e.running
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.runs, run)
}

// reportRunning makes the reports that are due, and sets the timer for the next ones. No report
// of a new handler is due before the timer, because it is never set to more than the time after
// which a handler runs for long.
func (e *Engine) reportRunning() {
	l := &e.running
	l.mu.Lock()
	pause, due := e.cfg.longRunning, []func(){}
	for run, next := range l.runs {
		age := time.Since(run.started)
		if age >= next.due {
			e.work.hold() // Close waits for the run, and so for this report
			due = append(due, func() {
				defer e.work.done()
				e.observe(next.ctx, run.request, Event{Type: EventLongRunning, Attempt: run.settlement.Attempt, State: StatePending, Duration: age})
			})
		}
		for next.due <= age {
			next.due *= 2
		}
		l.runs[run] = next
		pause = min(pause, next.due-age)
	}
	l.timer = nil
	if len(l.runs) > 0 {
		l.timer = time.AfterFunc(pause, e.reportRunning)
	}
	l.mu.Unlock()
	for _, tell := range due {
		tell()
	}
}
