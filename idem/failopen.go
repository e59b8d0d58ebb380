package idem

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

func (m *lockMode) unread(ctx context.Context, r *request, rec driver.Record, h Handler, err error) (*Result, error) {
	return m.failOpen(ctx, r, rec.State, h, err)
}

// failOpen runs the handler without protection. It does so only if the policy allows that, if
// the lock or the store cannot be reached, and if no attempt of the key is known. An attempt is
// known if it runs, is in doubt or was completed, or if its record cannot be read.
func (m *lockMode) failOpen(ctx context.Context, r *request, known driver.State, h Handler, err error) (*Result, error) {
	refusal, ok := errors.AsType[*Refusal](err)
	if !ok || !r.Policy.FailOpen || r.open || used(known) || refusal.Code != CodeUnavailable || unreadable(err) || ctx.Err() != nil {
		return nil, err
	}
	if !m.work.startHandler() {
		return nil, refuse(CodeUnavailable, errClosed)
	}
	defer m.work.endHandler()
	m.observe(ctx, r, telemetry.Event{Type: telemetry.EventFailedOpen, Err: refusal.Err})
	r.telemetry.failedOpen = true
	inner, step := m.startStep(context.WithoutCancel(ctx), telemetry.StepHandler, r)
	x := m.newExecution(inner, r, unprotected{}, driver.Attempt{}, r.Policy.HandlerTimeout)
	defer x.end()
	res, handlerErr := &Result{}, errPanic // unless the handler returns
	defer func() { step.end(r, handlerErr) }()
	res.Response, handlerErr = h(x)
	return res, handlerErr
}

// unprotected is the owner of an execution that failed open. It has no lock.
type unprotected struct{}

func (unprotected) Fence() driver.Fence                            { return driver.Fence{} }
func (unprotected) Err() error                                     { return nil }
func (unprotected) Check(context.Context) (time.Duration, error)   { return 0, driver.ErrUnavailable }
func (unprotected) watch(context.Context, context.CancelCauseFunc) {}
