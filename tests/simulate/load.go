package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tests/simulate/simnet"
)

// The routes, by how they treat doubt. The n-th key uses the route n modulo their number.
var routes = []string{"ask", "leave", "again", "token"}

func routeOf(key int) string { return routes[key%len(routes)] }

func keyOf(key int) idem.Key { return idem.Key(fmt.Sprintf("key-%d", key)) }

const scope = "tenant"

func idOf(key int) driver.KeyID { return idem.NewKeyID(scope, keyOf(key)) }

// policy is the policy of a route.
func (w *world) policy(route string) idem.Policy {
	p := idem.Policy{Name: route, ResolverTimeout: w.plan.Session / 2, DuplicateWait: w.plan.Wait, InDoubt: idem.LeaveUnknown()}
	switch route {
	case "ask":
		p.InDoubt = idem.AskResolver(w.resolve)
	case "token":
		p.IssuedTokens, p.InDoubt = true, idem.AskResolver(w.resolve)
	case "again":
		p.InDoubt = idem.RunAgain()
	}
	return p
}

// policies are those of all routes.
func (w *world) policies() (policies []idem.Policy) {
	for _, route := range routes {
		policies = append(policies, w.policy(route))
	}
	return policies
}

// at is the process on which a handler or a resolver runs.
type at struct{}

// reach makes a call to the ledger. A ledger without fences is usually right beside the
// process, because a call that arrives late could follow the call of a later holder.
func (w *world) reach(ctx context.Context, p *process, serve func()) error {
	if !w.plan.Fenced && !w.plan.Distant {
		if p.ctx.Err() != nil {
			return errDead
		}
		serve()
		return nil
	}
	return p.calls(p.toLedger)(ctx, serve)
}

// ask calls the ledger, and returns its answer.
func (w *world) ask(ctx context.Context, p *process, f func() (string, error)) (string, error) {
	type answer struct {
		receipt string
		err     error
	}
	first := make(chan answer, 1)
	err := w.reach(ctx, p, func() {
		receipt, err := f()
		select {
		case first <- answer{receipt, err}:
		default:
		}
	})
	if err != nil {
		return "", err
	}
	a := <-first
	return a.receipt, a.err
}

// resolve is the resolver. It raises the fence and looks, in one step.
func (w *world) resolve(ctx context.Context, in idem.Interrupted) (idem.Resolution, error) {
	p := ctx.Value(at{}).(*process)
	found, err := w.ask(ctx, p, func() (string, error) { return w.ledger.look(in.OperationID, in.Fence, in.Attempt.Fence) })
	switch {
	case err != nil:
		return idem.StillUnknown(), err
	case found == "":
		return idem.NotApplied(), nil
	}
	return idem.Applied(idem.Response{Body: []byte(found)}), nil
}

var errHandler = errors.New("simulate: the handler failed")

// handle is the handler of a key. It makes one payment, and may be slow or fail at any
// point.
func (w *world) handle(ctx context.Context, p *process, key int) (idem.Response, error) {
	ex, _ := idem.FromContext(ctx)
	rnd := simnet.Random(w.plan.Seed, fmt.Sprint("handler ", key, ex.Attempt, p.host))
	one := func(in int) bool { return rnd.IntN(in) == 0 }
	if one(4) {
		w.linger(ctx, rnd, one(2))
	}
	if one(10) {
		idem.NoEffect(ctx)
		return idem.Response{}, errHandler
	}
	if !w.plan.Fenced || one(2) {
		if _, err := idem.CheckOwner(ctx); err != nil {
			return idem.Response{}, err
		}
	}
	call, cancel := context.WithTimeout(ctx, 3*w.plan.Session)
	defer cancel()
	receipt, err := w.ask(call, p, func() (string, error) { return w.ledger.pay(ex, routeOf(key) == "again") })
	switch {
	case err != nil:
		return idem.Response{}, err
	case one(6):
		return idem.Response{}, errHandler
	}
	if one(6) {
		w.linger(ctx, rnd, one(2))
	}
	return idem.Response{Body: []byte(receipt)}, nil
}

// linger takes up to one and a half sessions. It may heed the end of ctx.
func (w *world) linger(ctx context.Context, rnd *rand.Rand, heed bool) {
	d := time.Duration(rnd.Int64N(int64(w.plan.Session * 3 / 2)))
	if !heed {
		time.Sleep(d)
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// request sends a request to a process, and returns when it is answered or the process has
// died.
func (w *world) request(p *process, key int) (idem.Result, error) {
	select {
	case <-p.up:
	case <-p.ctx.Done():
	}
	if p.ctx.Err() != nil || p.engine == nil {
		return idem.Result{}, errDead
	}
	policy := w.policy(routeOf(key))
	type answer struct {
		res idem.Result
		err error
	}
	answered := make(chan answer, 1)
	w.wg.Go(func() {
		ctx := context.WithValue(p.ctx, at{}, p)
		res, err := p.engine.Do(ctx, idem.Operation{
			Scope: scope, Key: keyOf(key), Policy: &policy, Fingerprint: idem.FingerprintOf("pay", fmt.Sprint(key)),
		}, func(ctx context.Context) (idem.Response, error) { return w.handle(ctx, p, key) })
		answered <- answer{res, err}
	})
	select {
	case a := <-answered:
		if p.ctx.Err() == nil && p.runs() {
			return a.res, a.err
		}
	case <-p.ctx.Done():
	}
	return idem.Result{}, errDead // the answer did not leave the process
}

// load is one client. It sends each key to any process, until it is answered for good.
func (w *world) load(client int) {
	rnd := simnet.Random(w.plan.Seed, fmt.Sprint("client ", client))
	for _, key := range rnd.Perm(w.plan.Keys) {
		time.Sleep(time.Duration(rnd.Int64N(int64(w.plan.Storm / 2))))
		for again := 1 + rnd.IntN(3); again > 0 && time.Since(w.start) < w.plan.Storm; again-- {
			for time.Since(w.start) < w.plan.Storm {
				res, err := w.request(w.process(rnd.IntN(w.plan.Processes)), key)
				if w.judge.answered(key, res, err) {
					break
				}
				time.Sleep(50*time.Millisecond + time.Duration(rnd.Int64N(int64(time.Second))))
			}
		}
	}
}
