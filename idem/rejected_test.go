package idem_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// rejecting are the statuses by which a handler finds fault with the request itself.
var rejecting = map[idem.Transport][]int{idem.TransportHTTP: {400, 415, 422}, idem.TransportGRPC: {3}}

// A handler in joined mode that rejects a request before it has done anything leaves the key free for the
// corrected request. After anything else the answer is the outcome.
func TestJoinedRejectionLeavesTheKeyFree(t *testing.T) {
	t.Parallel()
	take := func(ctx context.Context) { _, _ = txOf(ctx) }
	for name, tt := range map[string]struct {
		acts   func(ctx context.Context)
		policy func(*idem.Policy)
		binds  bool
	}{
		"before anything":                         {acts: func(context.Context) {}},
		"knowing its operation":                   {acts: func(ctx context.Context) { _, _ = idem.FromContext(ctx) }},
		"on a route that states what is needless": {acts: func(context.Context) {}, policy: func(p *idem.Policy) { p.GateFirst = true }},
		"after it has taken its transaction":      {acts: take, binds: true},
		"after CheckOwner":                        {binds: true, acts: func(ctx context.Context) { _, _ = idem.CheckOwner(ctx) }},
		"after a key that it was not given":       {binds: true, acts: func(ctx context.Context) { _, _ = idem.DownstreamKey(ctx, "bank") }},
		"with writes to keep":                     {binds: true, acts: idem.KeepWrites},
		"on a route that calls other systems":     {binds: true, acts: func(context.Context) {}, policy: func(p *idem.Policy) { p.CallsOtherSystems = true }},
		"on one that states that the gate is first": {binds: true, acts: func(context.Context) {},
			policy: func(p *idem.Policy) { p.CallsOtherSystems, p.GateFirst = true, true }},
	} {
		for transport, statuses := range rejecting {
			for _, status := range statuses {
				t.Run(fmt.Sprintf("%s, %d", name, status), func(t *testing.T) {
					t.Parallel()
					b := setupJoined(t, parts{policy: tt.policy})
					op := b.operation("k1", "0")
					op.Transport = transport
					rejects := func(ctx context.Context) (idem.Response, error) {
						tt.acts(ctx)
						return idem.Response{Status: status}, nil
					}
					for i := range 2 {
						res, err := b.engine.Do(t.Context(), op, rejects)
						if err != nil || res.Response.Status != status || res.Replayed != (tt.binds && i > 0) {
							t.Errorf("Do() = %+v, %v, want %d, replayed %t", res, err, status, tt.binds && i > 0)
						}
					}
					if tt.binds {
						b.wantState("k1", driver.StateCompleted)
						b.wantRefusal("k1", "100", idem.CodeKeyReused)
						return
					}
					b.wantState("k1", driver.StateNone)
					b.wantPayment("k1", "100", 1, false)
					b.wantPayment("k1", "100", 1, true)
					b.wantLines("payment 1")
				})
			}
		}
	}
}

// Every other answer binds the key, or leaves its outcome as open as before.
func TestJoinedAnswersThatAreNoRejections(t *testing.T) {
	t.Parallel()
	for _, status := range []int{402, 404, 405, 409, 410, 412, 413, 451} {
		b := setupJoined(t, parts{})
		b.wantAnswer("k1", "0", status)
		b.wantState("k1", driver.StateCompleted)
		b.wantRefusal("k1", "100", idem.CodeKeyReused)
	}
	for _, code := range []int{5, 6, 9, 11, 12} {
		b := setupJoined(t, parts{})
		op := b.operation("k1", "0")
		op.Transport = idem.TransportGRPC
		if _, err := b.engine.Do(t.Context(), op, answers(code)); err != nil {
			t.Error(err)
		}
		b.wantState("k1", driver.StateCompleted)
	}
	b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.StatusesInDoubt = []int{422} }})
	_, err := b.doWith("k1", "0", answers(422)) // the route knows better
	b.wantRefused(err, idem.CodeUnavailable)
	direct := setupJoined(t, parts{})
	if _, err := direct.engine.Do(t.Context(), direct.direct("k1", "0"), func(ctx context.Context) (idem.Response, error) {
		direct.write(ctx, "job")
		return idem.Response{Status: 422}, nil
	}); err != nil { // a number of the application's own
		t.Error(err)
	}
	direct.wantLines("job")
}

// A one-time token is not used up by a request that was rejected before anything happened.
func TestJoinedRejectionLeavesTheTokenValid(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.IssuedTokens = true }})
	b.issue("token")
	b.wantAnswer("token", "0", 422)
	b.wantState("token", driver.StateIssued)
	b.wantPayment("token", "100", 1, false)
	b.wantRefusal("token", "200", idem.CodeKeyReused)
	b.wantRefusal("other", "200", idem.CodeTokenUnknown)
	b.wantLines("payment 1")
}

// An attempt that starts from one in doubt has a key that is bound already.
func TestJoinedRejectionAfterDoubt(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.InDoubt = idem.RunAgain() }})
	b.interruptedJoined("k1")
	b.wantAnswer("k1", "100", 422)
	b.wantState("k1", driver.StateCompleted)
	b.wantRefusal("k1", "900", idem.CodeKeyReused)
}

// Duplicates of a request that is rejected have waited for an answer that is not theirs. Each gets its own.
func TestJoinedDuplicatesOfARejection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = time.Minute }})
		finish := b.started("k1", "0", func(context.Context) (idem.Response, error) {
			b.runs.Add(1)
			return idem.Response{Status: 422}, nil
		})
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				res, err := b.doWith("k1", "0", func(context.Context) (idem.Response, error) {
					b.runs.Add(1)
					return idem.Response{Status: 422}, nil
				})
				if err != nil || res.Response.Status != 422 || res.Replayed {
					t.Errorf("Do() = %+v, %v, want the 422 of a run of its own", res, err)
				}
			})
		}
		synctest.Wait()
		b.wantRefusal("k1", "100", idem.CodeKeyReused) // only while a request with another body runs
		if res, err := finish(); err != nil || res.Response.Status != 422 {
			t.Errorf("Do() = %+v, %v, want 422", res, err)
		}
		wg.Wait()
		b.wantRuns(6)
		b.wantPayment("k1", "100", 7, false)
		b.wantLines("payment 7")
	})
}

// With a lock the engine cannot see whether a handler has acted, so the policy has to state where that begins.
func TestRejectionBeforeTheGateOfALockedRoute(t *testing.T) {
	t.Parallel()
	gateFirst := func(p *idem.Policy) { p.GateFirst = true }
	for name, tt := range map[string]struct {
		policy func(*idem.Policy)
		acts   func(ctx context.Context)
		want   driver.State
	}{
		"nothing is stated":   {nil, nil, driver.StateCompleted},
		"before the gate":     {gateFirst, nil, driver.StateReleased},
		"after CheckOwner":    {gateFirst, func(ctx context.Context) { _, _ = idem.CheckOwner(ctx) }, driver.StateCompleted},
		"after DownstreamKey": {gateFirst, func(ctx context.Context) { _, _ = idem.DownstreamKey(ctx, "bank") }, driver.StateCompleted},
		"with the fence":      {gateFirst, func(ctx context.Context) { _, _ = idem.FromContext(ctx) }, driver.StateCompleted},
		"of a route that puts it in doubt": {func(p *idem.Policy) {
			p.GateFirst, p.StatusesInDoubt = true, []int{400, 415, 422, 3}
		}, nil, driver.StateUnknown},
		"after its deadline": {func(p *idem.Policy) {
			p.GateFirst, p.HandlerTimeout = true, time.Millisecond
		}, func(ctx context.Context) { <-ctx.Done() }, driver.StateUnknown},
	} {
		for transport, statuses := range rejecting {
			for _, status := range statuses {
				t.Run(fmt.Sprintf("%s, %d", name, status), func(t *testing.T) {
					t.Parallel()
					b := setup(t, parts{policy: tt.policy})
					op := b.operation("k1", "0")
					op.Transport = transport
					_, _ = b.engine.Do(t.Context(), op, func(ctx context.Context) (idem.Response, error) {
						if tt.acts != nil {
							tt.acts(ctx)
						}
						return idem.Response{Status: status}, nil
					})
					b.wantState("k1", tt.want)
					if tt.want == driver.StateReleased {
						b.wantPayment("k1", "100", 1, false)
					} else {
						b.wantRefusal("k1", "100", idem.CodeKeyReused)
					}
				})
			}
		}
	}
}

// A one-time token of a locked route is issued again, and an attempt that starts from one in doubt has bound
// the key.
func TestRejectionOfATokenAndAfterDoubt(t *testing.T) {
	t.Parallel()
	b := setup(t, parts{policy: func(p *idem.Policy) { p.IssuedTokens, p.GateFirst = true, true }})
	b.issue("token")
	b.wantAnswer("token", "0", 422)
	b.wantState("token", driver.StateIssued)
	b.wantPayment("token", "100", 1, false)

	b = setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt, p.GateFirst = idem.RunAgain(), true }})
	b.wantAnswer("k1", "100", 500)
	b.wantAnswer("k1", "100", 422)
	b.wantState("k1", driver.StateCompleted)
	b.wantRefusal("k1", "900", idem.CodeKeyReused)
}
