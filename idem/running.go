package idem

import (
	"context"
	"sync"
	"time"
)

// Running is what [Engine.Running] tells of the handlers that run under a lock.
type Running struct {
	Count  int
	Oldest time.Duration // for how long the first of them has been running; 0 where there is none
}

// Running tells how many handlers this engine runs, each holding its key, and for
// how long the oldest has been at it. It is cheap, and safe for concurrent use.
func (e *Engine) Running() Running {
	l := &e.running
	l.mu.Lock()
	defer l.mu.Unlock()
	r := Running{Count: l.count}
	if l.first != nil {
		r.Oldest = time.Since(l.first.started)
	}
	return r
}

// runningList has the handlers that run, in the order in which they started, and
// reports those that run for long. One timer serves them all. It is set at the
// most once in every limit while all are quick.
type runningList struct {
	limit time.Duration // after which a handler is reported; 0: never

	mu          sync.Mutex
	first, last *runningEntry
	count       int
	timer       *time.Timer // set while ticking
	ticking     bool
	closed      bool
}

// runningEntry is a handler in the list. Guarded by the list's mu.
type runningEntry struct {
	ctx        context.Context
	run        *run
	started    time.Time
	due        time.Duration // the age at which it is reported next
	prev, next *runningEntry
}

// startRunning puts a run in the list.
func (e *Engine) startRunning(ctx context.Context, run *run) {
	x, l := &run.entry, &e.running
	x.ctx, x.run, x.started, x.due = ctx, run, run.started, l.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	if x.prev = l.last; x.prev != nil {
		x.prev.next = x
	} else {
		l.first = x
	}
	l.last = x
	l.count++
	if l.limit > 0 && !l.ticking && !l.closed {
		l.ticking = true
		if l.timer == nil {
			l.timer = time.AfterFunc(l.limit, e.reportLongRunning)
		} else {
			l.timer.Reset(l.limit)
		}
	}
}

func (l *runningList) remove(x *runningEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x.prev != nil {
		x.prev.next = x.next
	} else {
		l.first = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	} else {
		l.last = x.prev
	}
	l.count--
}

// reportLongRunning reports the handlers whose time has come, and sets the timer
// for the next one.
func (e *Engine) reportLongRunning() {
	type report struct {
		ctx context.Context
		ev  Event
	}
	var reports []report
	l := &e.running
	l.mu.Lock()
	if l.first == nil || l.closed {
		l.ticking = false
		l.mu.Unlock()
		return
	}
	now, next := time.Now(), l.limit
	for x := l.first; x != nil; x = x.next {
		age := now.Sub(x.started)
		if age < l.limit { // and so are all that started later
			next = min(next, l.limit-age)
			break
		}
		if age >= x.due {
			reports = append(reports, report{x.ctx, Event{Type: EventLongRunning, Route: x.run.Policy.Name, KeyID: x.run.id,
				Attempt: x.run.settlement.Attempt, State: StatePending, Duration: age}})
			for x.due <= age {
				x.due *= 2
			}
		}
		next = min(next, x.due-age)
	}
	l.timer.Reset(next)
	e.work.hold() // a request is in the list, so that Close waits for it and for us
	l.mu.Unlock()
	defer e.work.done()
	if e.cfg.observer == nil {
		return
	}
	for _, r := range reports {
		e.report(r.ctx, r.ev)
	}
}

// close stops the reports. One that is on its way is not waited for.
func (l *runningList) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
}
