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

// finding is what becomes of a request whose key has a record that let no attempt begin.
type finding struct {
	record driver.Record // as it is now
	result *Result       // the answer, or nil
	again  bool          // an attempt may begin now: the next one, or one from the open one
}

// found handles a record that did not let an attempt begin. We have the key by a claim.
func (c *core) found(ctx context.Context, r *request, claim claim, rec driver.Record) (finding, error) {
	r.open = true
	res, err := c.fromRecord(ctx, r, &rec)
	if res != nil || err != nil {
		return finding{record: rec, result: res}, err
	}
	if !rec.State.Open() { // it changed after Begin read it
		return finding{record: rec, again: true}, nil
	}
	if err := claim.outlives(ctx, r, rec.Attempt); err != nil {
		if rec.State == driver.StateUnknown && errors.Is(err, ErrForeignDomain) {
			err = r.unknown(&rec, false) // until an operator retires the domain
		}
		return finding{record: rec}, err
	}
	if rec.State == driver.StatePending {
		c.observe(ctx, r, telemetry.Event{Type: telemetry.EventInterrupted, Attempt: rec.Attempt, State: driver.StatePending})
	}
	if r.Policy.RunsAgain(rec.Attempt) {
		return finding{record: rec, again: true}, nil
	}
	return c.resolve(ctx, r, claim, rec)
}

// startsFrom says how the next attempt begins after a finding: from the open attempt, or from none. The
// key stays bound to its request. If the route does not run again in doubt, the store has fallen back
// to an open attempt, and the next round settles it.
func (r *request) startsFrom(rec *driver.Record) (open *driver.Attempt, bound driver.Fingerprint) {
	if rec.State.Open() && r.Policy.RunsAgain(rec.Attempt) {
		from := rec.Attempt // the store may still read it when rec has changed
		return &from, rec.Fingerprint
	}
	return nil, r.fingerprint
}

// resolve settles an attempt in doubt, under a claim that outlives it, and answers the request if it
// took effect or stays in doubt.
func (c *core) resolve(ctx context.Context, r *request, claim claim, rec driver.Record) (finding, error) {
	rec, resolveErr, err := c.settleDoubt(ctx, r, claim, rec)
	if err != nil {
		return finding{record: rec}, err
	}
	switch rec.State {
	case driver.StateReleased, driver.StateIssued:
		return finding{record: rec, again: true}, nil
	case driver.StateUnknown:
		return finding{record: rec}, withCause(r.unknown(&rec, r.Policy.settles(rec.Attempt)), resolveErr)
	}
	res, err := c.fromRecord(ctx, r, &rec)
	return finding{record: rec, result: res, again: res == nil && err == nil}, err
}

// settleDoubt asks the resolver about an open attempt, and settles it accordingly. It returns the new
// record. Without an answer the attempt becomes or stays unknown. resolveErr tells why the resolver
// could not answer. err is a refusal.
func (c *core) settleDoubt(ctx context.Context, r *request, claim claim, rec driver.Record) (after driver.Record, resolveErr, err error) {
	d := driver.Decision{By: "resolver"}
	resolution, resolveErr := c.ask(ctx, r, claim, &rec)
	if resolution.verdict == stillUnknown && rec.State == driver.StateUnknown {
		if r.Policy.InDoubt.resolver != nil {
			c.observe(ctx, r, telemetry.Event{Type: telemetry.EventUnresolved, Attempt: rec.Attempt, State: driver.StateUnknown, Err: resolveErr})
		}
		return rec, resolveErr, nil
	}
	switch {
	case r.Policy.InDoubt.resolver == nil:
		d = driver.Decision{By: "engine", Reason: "interrupted, and the route has no resolver"}
	case resolveErr != nil:
		d.Reason = cutOff("it failed: "+resolveErr.Error(), driver.MaxReasonBytes)
	case resolution.verdict == stillUnknown:
		d.Reason = "it cannot tell"
	}
	res, err := c.settleAs(ctx, r, claim, &rec, resolution, d, resolveErr)
	return res.Record, resolveErr, err
}

// settleAs settles the open attempt of a record, unless another settlement comes first. If the store
// fell back to a time before that attempt, settleAs repairs it, because our knowledge of the attempt
// is still true. The error is a refusal.
//
// A release repairs nothing. The late holder may have undone the attempt, and the next attempt
// then has the same number. After a loss, a release that arrives late would bring the number
// back, and the next Begin would look later than a marker.
func (c *core) settleAs(ctx context.Context, r *request, by owner, rec *driver.Record, resolution Resolution, d driver.Decision, cause error) (driver.SettleResult, error) {
	repair := repairOf(rec)
	s := driver.Settlement{Attempt: rec.Attempt, ID: driver.NewNonce(), State: driver.StateUnknown, Response: rec.Response,
		ResultTTL: r.Policy.ResultTTL, KeyTTL: r.Policy.KeyTTL, Decision: d, LeaseTrusted: true, Repair: &repair}
	switch resolution.verdict {
	case applied:
		s.State, s.Response = driver.StateCompleted, resolution.response
	case notApplied:
		s.State, s.Response, s.Repair = driver.StateReleased, nil, nil
	}
	if d.ByPerson() {
		var err error
		if s.ID, err = driver.DecisionID(r.id, &s); err != nil {
			return driver.SettleResult{Record: *rec}, err
		}
	}
	if err := by.Err(); err != nil {
		return driver.SettleResult{Record: *rec}, refuse(CodeOwnershipLost, err)
	}
	res, err := c.callSettle(ctx, r, &s, c.cfg.settleTimeout, c.store.Settle)
	if err != nil {
		return res, storeRefusal(err)
	}
	if res.Repaired {
		c.observe(ctx, r, telemetry.Event{Type: telemetry.EventRepaired, Attempt: s.Attempt, State: res.Record.State})
	}
	if res.Settled {
		ev := telemetry.Event{Type: telemetry.EventResolved, Attempt: s.Attempt, State: res.Record.State, Err: cause, By: d.By}
		if s.State == driver.StateUnknown {
			ev.Type, ev.By = telemetry.EventUnknown, ""
		}
		c.observe(ctx, r, ev)
	}
	return res, nil
}

// ask calls the resolver of the policy. If the resolver fails, panics or hangs, the outcome
// stays unknown.
func (c *core) ask(ctx context.Context, r *request, by owner, rec *driver.Record) (Resolution, error) {
	if r.Policy.InDoubt.resolver == nil {
		return StillUnknown(), nil
	}
	ctx, step := c.startStep(ctx, telemetry.StepResolve, r)
	x := c.newExecution(ctx, r, by, rec.Attempt, r.Policy.ResolverTimeout)
	x.resolves = true
	defer x.end()
	resolution, err := c.callResolver(x, r.Policy.InDoubt.resolver, Interrupted{KeyID: r.id, OperationID: r.id.OperationID(), Route: rec.Route,
		Attempt: rec.Attempt, Fence: by.Fence(), Response: (*Response)(rec.Response)})
	step.end(r, err)
	return resolution, err
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
func (c *core) callResolver(ctx context.Context, fn Resolver, in Interrupted) (Resolution, error) {
	if c.behind.full(in.Route) {
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
				c.behind.add(in.Route, -1)
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
		c.behind.add(in.Route, 1)
		close(left)
		return StillUnknown(), fmt.Errorf("idem: resolver: %w", context.Cause(ctx))
	}
}

// cutOff returns at most n bytes of s, in valid UTF-8.
func cutOff(s string, n int) string {
	return strings.ToValidUTF8(s[:min(len(s), n)], "")
}
