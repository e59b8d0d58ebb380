package idem

import (
	"context"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

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
