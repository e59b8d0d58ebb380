package idem

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

var (
	errPanic  = errors.New("idem: handler panicked")
	errClosed = errors.New("idem: engine is closed")
)

// execute is step 6: it runs the handler of an attempt. If the handler panics or exits, panicked
// settles the attempt before that goes on.
func (c *core) execute(ctx context.Context, run *run, by owner, h Handler, panicked func()) {
	r := run.request
	r.telemetry.attempt = run.settlement.Attempt.Number
	inner, step := c.startStep(ctx, telemetry.StepHandler, r)
	run.span = step.span()
	x := c.newExecution(inner, r, by, run.settlement.Attempt, r.Policy.HandlerTimeout)
	run.execution = x
	defer x.end()
	c.handlerStarted(ctx, run)
	defer c.handlerEnded(run)

	returned := false
	defer func() {
		x.ended.Store(true)
		if !returned {
			run.err = errPanic
			step.end(r, errPanic)
			panicked()
		}
	}()
	run.response, run.err = h(x)
	returned = true
	run.cut = x.Err() != nil // before telemetry, which may take its time
	step.end(r, run.err)
}

// abandon reports an outcome that will not be settled. told says that the client has the
// outcome, or gets it now.
func (c *core) abandon(ctx context.Context, run *run, told bool, err error) {
	s := &run.settlement
	c.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventSettleAbandoned, Attempt: s.Attempt, State: s.State, Err: err})
	if told && s.State == driver.StateCompleted {
		c.observe(ctx, run.request, telemetry.Event{Type: telemetry.EventUnstored, Attempt: s.Attempt, Err: err})
	}
}

// settledEvents are the events of an attempt that its holder settled.
var settledEvents = map[driver.State]telemetry.EventType{
	driver.StateUnknown:   telemetry.EventUnknown,
	driver.StateCompleted: telemetry.EventCompleted,
	driver.StateReleased:  telemetry.EventReleased,
}

// ended reports the end of an attempt. A released token is issued again, and a rolled-back
// transaction leaves the record of before, so the event says what the attempt became.
func (c *core) ended(ctx context.Context, run *run, t telemetry.EventType, state driver.State, cause error) {
	settled := state
	switch t {
	case telemetry.EventReleased:
		settled = driver.StateReleased
	case telemetry.EventUnknown:
		settled = driver.StateUnknown
	}
	run.telemetry.settled.Store(uint32(settled))
	if resp := run.settlement.Response; t == telemetry.EventCompleted && cause == nil && resp != nil && resp.Omitted {
		cause = errNotKept
	}
	c.observe(ctx, run.request, telemetry.Event{Type: t, Attempt: run.settlement.Attempt, State: state, Duration: time.Since(run.started), Err: cause})
}

// errNotKept says that an outcome is stored, and its response is not.
var errNotKept = errors.New("idem: the response was not kept, because it was streamed or too long: repeats get result-unavailable")
