package idem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// resolve settles an attempt in doubt, under a lease that outlives it, and answers the request.
// again says that the attempt was settled as not applied.
func (e *Engine) resolve(ctx context.Context, r *request, lease driver.Lease) (res *Result, again bool, err error) {
	rec := &r.record
	resolveErr, err := e.settleDoubt(ctx, r, lease)
	if err != nil {
		return nil, false, err
	}
	switch rec.State {
	case driver.StateReleased, driver.StateIssued:
		return nil, true, nil
	case driver.StateUnknown:
		return nil, false, withCause(r.unknown(rec, r.Policy.settles(rec.Attempt)), resolveErr)
	}
	res, err = e.judge(r, rec)
	if res != nil {
		e.replayed(ctx, r)
	}
	return res, res == nil && err == nil, err
}

// settleDoubt asks the resolver about the open attempt in r.record, and settles it accordingly.
// Without an answer the attempt becomes or stays unknown. resolveErr tells why the resolver
// could not answer. err is a refusal.
func (e *Engine) settleDoubt(ctx context.Context, r *request, lease driver.Lease) (resolveErr, err error) {
	rec := &r.record // settleAs replaces it
	d := driver.Decision{By: "resolver"}
	resolution, resolveErr := e.ask(ctx, r, lease, rec)
	if resolution.verdict == stillUnknown && rec.State == driver.StateUnknown {
		if r.Policy.InDoubt.resolver != nil {
			e.observe(ctx, r, telemetry.Event{Type: telemetry.EventUnresolved, Attempt: rec.Attempt, State: driver.StateUnknown, Err: resolveErr})
		}
		return resolveErr, nil
	}
	switch {
	case r.Policy.InDoubt.resolver == nil:
		d = driver.Decision{By: "engine", Reason: "interrupted, and the route has no resolver"}
	case resolveErr != nil:
		d.Reason = cutOff("it failed: "+resolveErr.Error(), driver.MaxReasonBytes)
	case resolution.verdict == stillUnknown:
		d.Reason = "it cannot tell"
	}
	_, err = e.settleAs(ctx, r, lease, resolution, d, resolveErr)
	return resolveErr, err
}

// settleAs settles the open attempt in r.record, unless another settlement comes first, and
// leaves the new record there. If the store fell back to a time before that attempt, settleAs
// repairs it, because our knowledge of the attempt is still true. The error is a refusal.
//
// A release repairs nothing. The late holder may have undone the attempt, and the next attempt
// then has the same number. After a loss, a release that arrives late would bring the number
// back, and the next Begin would look later than a marker.
func (e *Engine) settleAs(ctx context.Context, r *request, lease driver.Lease, resolution Resolution, d driver.Decision, cause error) (settled bool, err error) {
	rec := r.record
	repair := repairOf(&rec)
	s := driver.Settlement{Attempt: rec.Attempt, ID: driver.NewNonce(), State: driver.StateUnknown, Response: rec.Response,
		ResultTTL: r.Policy.ResultTTL, KeyTTL: r.Policy.KeyTTL, Decision: d, LeaseTrusted: true, Repair: &repair}
	switch resolution.verdict {
	case applied:
		s.State, s.Response = driver.StateCompleted, resolution.response
	case notApplied:
		s.State, s.Response, s.Repair = driver.StateReleased, nil, nil
	}
	if err := lease.Err(); err != nil {
		return false, refuse(CodeOwnershipLost, err)
	}
	res, err := e.callSettle(ctx, r, &s, e.cfg.settleTimeout)
	if err != nil {
		return false, storeRefusal(err)
	}
	if res.Repaired {
		e.observe(ctx, r, telemetry.Event{Type: telemetry.EventRepaired, Attempt: s.Attempt, State: r.record.State})
	}
	if res.Settled {
		ev := telemetry.Event{Type: telemetry.EventResolved, Attempt: s.Attempt, State: r.record.State, Err: cause, By: d.By}
		if s.State == driver.StateUnknown {
			ev.Type, ev.By = telemetry.EventUnknown, ""
		}
		e.observe(ctx, r, ev)
	}
	return res.Settled, nil
}

// ask calls the resolver of the policy. If the resolver fails, panics or hangs, the outcome
// stays unknown.
func (e *Engine) ask(ctx context.Context, r *request, lease driver.Lease, rec *driver.Record) (Resolution, error) {
	if r.Policy.InDoubt.resolver == nil {
		return StillUnknown(), nil
	}
	ctx, step := e.startStep(ctx, telemetry.StepResolve, r)
	x := e.newExecution(ctx, r, lease, rec.Attempt, r.Policy.ResolverTimeout)
	x.resolves = true
	defer x.end()
	resolution, err := e.callResolver(x, r.Policy.InDoubt.resolver, Interrupted{KeyID: r.id, OperationID: r.id.OperationID(), Route: rec.Route,
		Attempt: rec.Attempt, Fence: fenceOf(lease), Response: (*Response)(rec.Response)})
	step.end(r, err)
	return resolution, err
}

// inDoubt asks the resolver about our attempt, if that just ended in doubt. It takes the lock
// anew first. Requests of the attempt without an answer carry its fence, so only a later fence
// can shut them out.
func (e *Engine) inDoubt(ctx context.Context, run *run, cause error) (*Result, error) {
	if run.lost() {
		run.lease.ReleaseInBackground()
		return nil, withCause(run.refuse(CodeOwnershipLost, run.lease.Err()), cause)
	}
	r := run.request
	e.release(ctx, r, run.lease)
	if r.Policy.InDoubt.resolver == nil {
		return run.tell(outcomeInDoubt, false) // the next request runs again, or an operator decides
	}
	lease, err := e.lock(ctx, r)
	if err != nil {
		return run.tell(outcomeInDoubt, false) // the new holder, or the next request, asks the resolver
	}
	var res *Result
	var again bool
	if err = e.read(ctx, r); err == nil {
		res, again, err = e.found(ctx, r, lease)
	}
	e.giveBack(ctx, r, lease)
	switch {
	case err != nil:
		return run.tell(outcomeInDoubt, false) // the next request asks the resolver
	case again && classify(run.Transport, run.response.Status, false) == outcomeNoEffect:
		return run.tell(outcomeNoEffect, true) // the resolver says the same
	case again:
		return run.tell(outcomeInDoubt, true)
	}
	e.endFirst(r, res)
	return res, nil
}

// maxResolversBehind is how many resolvers of a route that ignore their context an engine leaves behind.
const maxResolversBehind = 64

var errResolversBehind = errors.New("idem: too many resolvers of the route have not returned after their context had ended")

// resolversBehind counts the resolvers of each route that have not returned although their context has
// ended. One provider that hangs must not keep the resolvers of other routes from being asked.
type resolversBehind struct {
	mu      sync.Mutex
	byRoute map[string]int // an entry is never 0
}

func (b *resolversBehind) full(route string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byRoute[route] >= maxResolversBehind
}

func (b *resolversBehind) add(route string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byRoute == nil {
		b.byRoute = make(map[string]int)
	}
	if b.byRoute[route] += n; b.byRoute[route] == 0 {
		delete(b.byRoute, route)
	}
}

// callResolver turns a panic and an error of a resolver into "still unknown". It leaves a
// resolver behind that ignores its context. While too many of the route have not returned, it asks none, because
// each request of a key in doubt would leave one more.
func (e *Engine) callResolver(ctx context.Context, fn Resolver, in Interrupted) (Resolution, error) {
	if e.behind.full(in.Route) {
		return StillUnknown(), errResolversBehind
	}
	type answer struct {
		resolution Resolution
		err        error
	}
	done, left := make(chan answer), make(chan struct{})
	go func() {
		a := answer{err: errors.New("idem: resolver panicked or exited")}
		defer func() {
			if p := recover(); p != nil {
				a = answer{err: fmt.Errorf("idem: resolver panicked: %v", p)}
			}
			select {
			case done <- a:
			case <-left:
				e.behind.add(in.Route, -1)
			}
		}()
		resolution, err := fn(ctx, in)
		a = answer{resolution, err}
	}()
	select {
	case a := <-done:
		if a.err != nil {
			return StillUnknown(), a.err
		}
		return a.resolution, nil
	case <-ctx.Done():
		e.behind.add(in.Route, 1)
		close(left)
		return StillUnknown(), fmt.Errorf("idem: resolver: %w", context.Cause(ctx))
	}
}

// cutOff returns at most n bytes of s, in valid UTF-8.
func cutOff(s string, n int) string {
	return strings.ToValidUTF8(s[:min(len(s), n)], "")
}
