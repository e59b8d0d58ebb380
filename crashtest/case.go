package crashtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Result is what became of a case.
type Result string

// The results. Only the last two are no evidence.
const (
	Once       Result = "once"        // a final success, and one effect
	None       Result = "none"        // a final refusal, and no effect
	Doubt      Result = "doubt"       // in doubt and told so, and one effect at most
	Failed     Result = "FAILED"      // see Case.Why
	NotReached Result = "not reached" // the request never came to the point
	LeftOut    Result = "left out"    // see Case.Why
)

// Case is a fault at a point, and what became of it.
type Case struct {
	Point    PointInfo
	Fault    Fault
	Server   string // that was restarted
	Result   Result
	Cell     string // the result in a word or two, for the table
	Why      string // it failed or was left out
	Timeline string // of a failure
}

// id selects the case in another run, in which the points may have other numbers.
func (c *Case) id() string {
	if c.Fault == Repeated {
		return string(Repeated)
	}
	return fmt.Sprintf("%s: %s", c.name(), c.Point.named())
}

// tries is how often a case may miss its point or not start, with a new process each time.
const tries = 3

func (r *runner) try(ctx context.Context, c *Case) {
	for range tries {
		if r.tryOnce(ctx, c); c.Result != NotReached && c.Cell != noStart {
			return
		}
	}
}

// repeat sends the request without a fault, and sends it again.
func (r *runner) repeat(ctx context.Context, c *Case) {
	h := r.newHistory()
	in, err := r.start(ctx)
	if err != nil {
		c.failedf(noStart, "%v", err)
		return
	}
	defer in.kill()
	main := client{runner: r, history: h, name: "client", timeout: r.ClientTimeout, route: func(int) *instance { return in }}
	last := main.untilFinal(ctx)
	r.judge(ctx, c, h, main, last)
	if c.Result == Failed {
		c.Timeline = r.timeline(h, in, c)
	}
}

// Cells of cases that say nothing about the subject. They fail all the same.
const (
	noStart   = "no start"   // of the service
	noRestart = "no restart" // of a server
	noEnd     = "no end"     // of the fault
)

func (c *Case) failedf(cell, format string, args ...any) {
	c.Result, c.Cell, c.Why = Failed, cell, fmt.Sprintf(format, args...)
}

// tryOnce sends one request to a process in which the fault happens, and repeats it as a client would.
func (r *runner) tryOnce(ctx context.Context, c *Case) {
	at := target{c.Point.Name, c.Point.Nth, c.Fault}
	h := r.newHistory()
	ill, err := r.start(ctx)
	if err == nil {
		defer ill.kill()
		err = ill.arm(ctx, at)
	}
	if err != nil {
		c.failedf(noStart, "%v", err)
		return
	}
	c.Result, c.Cell, c.Why = "", "", "" // of the last try
	defer func() {
		if c.Result == Failed {
			c.Timeline = r.timeline(h, ill, c)
		}
	}()

	// The repeats go to a healthy process, and to the ill one too if that can answer.
	dead := func() bool {
		return !ill.running() || ill.has(isReached) && (c.Fault == KilledBefore || c.Fault == KilledAfter || c.Fault == Stopped)
	}
	main := client{runner: r, history: h, name: "client", timeout: r.ClientTimeout}
	main.away = func() bool { return c.Fault == Restarted && ill.has(isReached) && !ill.has(isResumed) && ill.running() }
	main.route = func(nth int) *instance {
		if nth == 0 || nth%2 == 1 && !dead() || r.OneInstance && ill.running() {
			return ill
		}
		return r.healthy(ctx, ill)
	}

	done, stop := context.WithCancel(ctx)
	defer stop()
	var others sync.WaitGroup
	others.Go(func() { r.accompany(done, c, h, ill, &others) })

	var last reply
	if c.Fault == Stopped {
		// The first request is a patient one, so that the process has every reason to go on when it is continued. A second
		// client, or the same one behind a proxy, asks meanwhile.
		answered, first := context.WithCancel(done)
		others.Go(func() {
			defer first()
			patient := main
			patient.timeout = r.Budget
			patient.send(done, 0)
		})
		_, _ = ill.await(answered, is(isReached))
		last = main.untilFinalFrom(ctx, 1)
	} else {
		last = main.untilFinal(ctx)
	}
	// A point may come after the answer, in the background.
	if err := r.awaitWithin(ctx, ill, 5*afterAnswer, is(isReached)); err != nil {
		stop()
		others.Wait()
		c.Result, c.Cell, c.Why = NotReached, string(NotReached), "the request did not come to the point again"
		return
	}
	others.Wait()
	if c.Result == Failed { // the fault itself did
		return
	}
	if err := r.calm(ctx, c, ill); err != nil {
		c.failedf(noEnd, "the fault did not end: %v", err)
		return
	}
	r.judge(ctx, c, h, main, last)
}

// calm waits until the ill process has ended what it began.
func (r *runner) calm(ctx context.Context, c *Case, ill *instance) error {
	switch c.Fault {
	case KilledBefore, KilledAfter:
		select {
		case <-ill.exited:
			return nil
		case <-time.After(r.Budget):
			return errors.New("the process does not die")
		}
	case AnswerLate, Stopped, Duplicate, OtherBody, Restarted:
		if err := r.awaitWithin(ctx, ill, r.Budget+r.late(), is(isResumed)); err != nil && !errors.Is(err, errEnded) {
			return fmt.Errorf("the process did not go on: %w", err)
		}
	}
	ill.quiet(ctx, 200*time.Millisecond, 2*time.Second)
	return nil
}

func (r *runner) awaitWithin(ctx context.Context, in *instance, d time.Duration, fits func(event) bool) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	_, err := in.await(ctx, fits)
	return err
}

// meeting is how long a process is held for requests that arrive meanwhile. They may wait for it.
const meeting = 400 * time.Millisecond

// accompany does the test's part of a fault.
func (r *runner) accompany(ctx context.Context, c *Case, h *history, ill *instance, others *sync.WaitGroup) {
	if _, err := ill.await(ctx, is(isReached)); err != nil {
		return
	}
	switch c.Fault {
	case Stopped:
		pause(ctx, r.late())
		// What asks at the other process has to be over, but it may wait for what this one holds.
		for end := time.Now().Add(3 * time.Second); !h.hasFinal() && time.Now().Before(end); {
			pause(ctx, 20*time.Millisecond)
		}
		h.notef("the process is continued")
		if err := continueProcess(ill.cmd.Process); err != nil {
			c.failedf(noEnd, "the process cannot be continued: %v", err)
		}
	case Duplicate, OtherBody:
		var answers sync.WaitGroup
		instances := []*instance{ill}
		if !r.OneInstance {
			instances = append(instances, r.healthy(ctx, ill))
		}
		for i, in := range instances {
			d := client{runner: r, history: h, name: fmt.Sprintf("%s %d", c.Fault, i+1), other: c.Fault == OtherBody, timeout: r.Budget}
			d.route = func(int) *instance { return in }
			answers.Go(func() { d.send(ctx, 0) })
			others.Go(func() { answers.Wait() })
		}
		met := make(chan struct{})
		go func() { answers.Wait(); close(met) }()
		select {
		case <-met:
		case <-time.After(meeting):
		}
		ill.send(order{GoOn: true})
	case Restarted:
		h.notef("%s is restarted", c.Server)
		if err := r.restart(ctx, c.Server); err != nil {
			c.failedf(noRestart, "%s did not start again: %v", c.Server, err)
		} else {
			h.notef("%s is back", c.Server)
		}
		ill.send(order{GoOn: true})
	}
}

func (r *runner) restart(ctx context.Context, server string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return r.Restart[server](ctx)
}

// hasFinal reports whether a client has a final answer.
func (h *history) hasFinal() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.replies {
		if a.final() {
			return true
		}
	}
	return false
}

var errTestEnded = errors.New("the test ended")
