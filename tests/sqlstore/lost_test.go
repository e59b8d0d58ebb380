package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// behindProxy returns pools of one connection to the same database, through a proxy.
func behindProxy(tb testing.TB, p pools) (pools, *testserver.Proxy) {
	tb.Helper()
	far, proxy := proxied(tb, p.dsn)
	far.write.SetMaxOpenConns(1)
	return far, proxy
}

// lossCase is a call whose connection breaks. prepare runs before on a good connection, call
// is the call, and verify runs it again, as the engine does, and checks the result.
type lossCase struct {
	name    string
	prepare func(t *testing.T, s *store, id driver.KeyID) any
	call    func(ctx context.Context, s *store, id driver.KeyID, was any) error
	state   driver.State
	number  uint32
}

var lossCases = []lossCase{
	{"a first Begin", func(*testing.T, *store, driver.KeyID) any { return request(7) }, callBegin, driver.StatePending, 1},
	{"a Begin after a release", func(t *testing.T, s *store, id driver.KeyID) any {
		t.Helper()
		a := mustBegin(t, s, id, request(5))
		settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateReleased, KeyTTL: time.Hour})
		return request(7)
	}, callBegin, driver.StatePending, 2},
	{"a Begin with a token", func(t *testing.T, s *store, id driver.KeyID) any {
		t.Helper()
		must(t, errOf(s.Issue(t.Context(), id, time.Hour)))
		req := request(7)
		req.Kind = driver.IssuedToken
		return req
	}, callBegin, driver.StatePending, 1},
	{"a Settle", func(t *testing.T, s *store, id driver.KeyID) any {
		t.Helper()
		return settlementOf(mustBegin(t, s, id, request(5)), "")
	}, callSettle, driver.StateCompleted, 1},
	{"a Settle by a person", func(t *testing.T, s *store, id driver.KeyID) any {
		t.Helper()
		return settlementOf(mustBegin(t, s, id, request(5)), "alice")
	}, callSettle, driver.StateCompleted, 1},
	{"an Abort", func(t *testing.T, s *store, id driver.KeyID) any {
		t.Helper()
		req := request(5)
		mustBegin(t, s, id, req)
		return req
	}, func(ctx context.Context, s *store, id driver.KeyID, was any) error {
		return s.Abort(ctx, id, was.(driver.BeginRequest))
	}, driver.StateReleased, 0},
	{"an Issue", func(*testing.T, *store, driver.KeyID) any { return nil }, func(ctx context.Context, s *store, id driver.KeyID, _ any) error {
		_, err := s.Issue(ctx, id, time.Hour)
		return err
	}, driver.StateIssued, 0},
	{"a Get", func(t *testing.T, s *store, id driver.KeyID) any {
		t.Helper()
		mustBegin(t, s, id, request(5))
		return nil
	}, func(ctx context.Context, s *store, id driver.KeyID, _ any) error {
		_, err := s.Get(ctx, id)
		return err
	}, driver.StatePending, 1},
	{"a RetireDomain", func(*testing.T, *store, driver.KeyID) any { return nil }, func(ctx context.Context, s *store, id driver.KeyID, _ any) error {
		return s.RetireDomain(ctx, id.String(), driver.Decision{By: "alice"})
	}, driver.StateNone, 0},
}

func callBegin(ctx context.Context, s *store, id driver.KeyID, was any) error {
	res, err := s.Begin(ctx, id, was.(driver.BeginRequest))
	switch {
	case err == nil && !res.Begun:
		return fmt.Errorf("Begin() = %v, want it begun", res.Record.State)
	case err != nil && (res.Begun || res.Record.State != driver.StateNone):
		return fmt.Errorf("Begin() has the result %+v beside its error: %s", res, err.Error()) // not wrapped, because it is no outage
	}
	return err
}

func callSettle(ctx context.Context, s *store, id driver.KeyID, was any) error {
	res, err := s.Settle(ctx, id, was.(driver.Settlement))
	switch {
	case err == nil && (!res.Settled || res.Repaired):
		return fmt.Errorf("Settle() = %v, settled %v, repaired %v", res.Record.State, res.Settled, res.Repaired)
	case err != nil && (res.Settled || res.Record.State != driver.StateNone):
		return fmt.Errorf("Settle() has the result %+v beside its error: %s", res, err.Error()) // not wrapped, because it is no outage
	}
	return err
}

func mustBegin(tb testing.TB, s *store, id driver.KeyID, req driver.BeginRequest) driver.Attempt {
	tb.Helper()
	res, err := s.Begin(tb.Context(), id, req)
	if err != nil || !res.Begun {
		tb.Fatalf("Begin() = begun %v, %v, want begun", res.Begun, err)
	}
	return res.Record.Attempt
}

func settlementOf(a driver.Attempt, by string) driver.Settlement {
	return driver.Settlement{Attempt: a, ID: a.Nonce, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: time.Hour,
		Response: &driver.Response{Status: 201, Body: []byte("paid")}, Decision: driver.Decision{By: by, Reason: "looked"}}
}

// The connection breaks before each statement reaches the server, and after each one took
// effect. The call then takes effect once, and not twice, or not at all.
func TestLostConnections(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		good := b.store(t, p, sqlstore.WithExpiry(0))
		far, proxy := behindProxy(t, p)
		s := b.store(t, far, sqlstore.WithExpiry(0))
		for _, c := range lossCases {
			for _, lostReply := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, lost reply %v", c.name, lostReply), func(t *testing.T) {
					for n := 1; c.lose(t, good, s, proxy, n, lostReply); n++ {
						if n > 50 {
							t.Fatal("the call never ends")
						}
					}
				})
			}
		}
	})
}

// lose runs the call with the n-th packet lost, and reports whether there was one.
func (c lossCase) lose(t *testing.T, good, s *store, proxy *testserver.Proxy, n int, lostReply bool) bool {
	t.Helper()
	id := idem.NewKeyID("lost", idem.Key(driver.NewNonce().String()))
	was := c.prepare(t, good, id)
	// MySQL answers no end of a statement, so a lost reply may hit the call after it.
	for tries := 0; s.Ping(t.Context()) != nil; tries++ {
		if tries == 5 {
			t.Fatal("there is no connection")
		}
	}
	drop := proxy.DropNextRequest
	if lostReply {
		drop = proxy.DropNextReply
	}
	var seen atomic.Int64
	var over atomic.Bool
	drop(func(testserver.Request) bool { return seen.Add(1) == int64(n) || over.Load() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := c.call(ctx, s, id, was)
	proxy.Restore()
	more := seen.Load() >= int64(n)
	if !more { // the rule is left, and hits this
		over.Store(true)
		_ = s.Ping(t.Context())
	}
	if err != nil && !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("packet %d: %v, want it to wrap %v", n, err, driver.ErrUnavailable)
	}
	if !more && err != nil {
		t.Errorf("without a loss: %v", err)
	}
	if err := c.call(t.Context(), good, id, was); err != nil {
		t.Errorf("packet %d: again: %v, want <nil>", n, err)
	}
	rec, err := good.Get(t.Context(), id)
	if err != nil || rec.State != c.state || rec.Attempt.Number != c.number {
		t.Errorf("packet %d: Get() = %v, attempt %d, %v, want %v, attempt %d", n, rec.State, rec.Attempt.Number, err, c.state, c.number)
	}
	if strings.Contains(c.name, "person") {
		if list, err := good.Decisions(t.Context(), id); len(list) != 1 || err != nil {
			t.Errorf("packet %d: Decisions() = %v, %v, want one", n, list, err)
		}
	}
	return more
}
