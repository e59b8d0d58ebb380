package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// Two stores that were written apart are given the same random calls, sent
// again and out of order, and have to answer alike.
func TestStoresAgree(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var mu sync.Mutex
	now := start
	m := miniredis.RunT(t)
	m.SetTime(now)
	client, err := redisstore.Connect("redis://" + m.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	inRedis, err := redisstore.New(t.Context(), client, redisstore.WithLogger(slog.New(slog.DiscardHandler)),
		redisstore.WithProcessClocks(clock, func() leaseclock.Instant { return leaseclock.Instant{}.Add(clock().Sub(start) + 1) }))
	if err != nil {
		t.Fatal(err)
	}
	inMemory := memorystore.New(memorystore.WithClock(clock))
	stores := []driver.Store{inMemory, inRedis}

	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	rounds := 30 // miniredis compiles its scripts for each call, which is slow
	if testing.Short() {
		rounds = 10
	}
	for round := range rounds {
		g := &generator{rng: rng, id: idem.NewKeyID("model", idem.Key(fmt.Sprint(seed, round)))}
		var trace []string
		for range 40 {
			if rng.IntN(8) == 0 {
				d := time.Duration(rng.IntN(100)) * time.Minute
				mu.Lock()
				now = now.Add(d)
				m.SetTime(now)
				mu.Unlock()
				m.FastForward(d)
				trace = append(trace, "advance "+d.String())
				continue
			}
			name, call := g.next()
			got := [2]string{}
			for i, s := range stores {
				got[i] = call(s)
				rec, err := s.Get(t.Context(), g.id)
				if err != nil {
					t.Fatal(err)
				}
				got[i] += " | " + describe(rec, start)
			}
			trace = append(trace, name+" -> "+got[0])
			if got[0] != got[1] {
				t.Fatalf("seed %d:\n%s\n%s = %s in memory, and in Redis\n%s", seed, strings.Join(trace, "\n"), name, got[0], got[1])
			}
			if rec, _ := inMemory.Get(t.Context(), g.id); rec.State != driver.StateNone {
				g.attempts = append(g.attempts, rec.Attempt)
			}
		}
	}
}

// generator makes random calls on one key, often ones it has made before.
type generator struct {
	rng      *rand.Rand
	id       driver.KeyID
	requests []driver.BeginRequest
	attempts []driver.Attempt
	settled  []driver.Settlement
}

func (g *generator) next() (string, func(driver.Store) string) {
	ctx := context.Background
	switch g.rng.IntN(9) {
	case 0:
		return "Issue", func(s driver.Store) string {
			rec, err := s.Issue(ctx(), g.id, time.Hour)
			return fmt.Sprint(rec.State, err)
		}
	case 1, 2, 3:
		req := g.request()
		return fmt.Sprintf("Begin %v %v %x, rerun %v", req.Kind, req.Fence, req.Nonce[:2], req.RunAgainFrom != nil), func(s driver.Store) string {
			res, err := s.Begin(ctx(), g.id, req)
			return fmt.Sprint(res.Begun, res.Replaced, res.Record.State, res.Record.Attempt.Number, errors.Is(err, driver.ErrStaleFence))
		}
	case 4:
		req := g.request()
		return fmt.Sprintf("Abort %v %v %x, rerun %v", req.Kind, req.Fence, req.Nonce[:2], req.RunAgainFrom != nil), func(s driver.Store) string {
			return fmt.Sprint(s.Abort(ctx(), g.id, req))
		}
	default:
		st := g.settlement()
		return fmt.Sprintf("Settle %d %v to %v, restore %v", st.Attempt.Number, st.Attempt.Fence, st.State, st.Repair != nil), func(s driver.Store) string {
			res, err := s.Settle(ctx(), g.id, st)
			return fmt.Sprint(res.Settled, res.Repaired, res.Record.State, res.Record.Attempt.Number, err)
		}
	}
}

func (g *generator) request() driver.BeginRequest {
	if len(g.requests) > 0 && g.rng.IntN(2) == 0 {
		return g.requests[g.rng.IntN(len(g.requests))]
	}
	req := driver.BeginRequest{
		Kind: driver.KeyKind(g.rng.IntN(5) / 4), Route: "route", Nonce: driver.NewNonce(), ResultTTL: g.ttl(), KeyTTL: g.ttl(),
		Fence:       driver.Fence{Domain: []string{"a", "a", "a", "bb"}[g.rng.IntN(4)], Token: 1<<63 + uint64(len(g.requests)) + uint64(g.rng.IntN(3))},
		Fingerprint: driver.Fingerprint{Version: 1, Sum: [32]byte{byte(g.rng.IntN(2))}},
	}
	if n := len(g.attempts); n > 0 && g.rng.IntN(3) == 0 {
		from := g.attempts[n-1]
		req.RunAgainFrom = &from
	}
	g.requests = append(g.requests, req)
	return req
}

// ttl is a time to live of a route. Calls of one key come from routes with shorter and with longer ones.
func (g *generator) ttl() time.Duration { return time.Duration(1+g.rng.IntN(4)) * time.Hour }

func (g *generator) settlement() driver.Settlement {
	if len(g.settled) > 0 && g.rng.IntN(3) == 0 {
		return g.settled[g.rng.IntN(len(g.settled))]
	}
	st := driver.Settlement{
		ID: driver.NewNonce(), State: []driver.State{driver.StateCompleted, driver.StateReleased, driver.StateUnknown, driver.StateReleased}[g.rng.IntN(4)],
		Response:  &driver.Response{Status: 200 + len(g.settled), Body: make([]byte, g.rng.IntN(2)*2000)},
		ResultTTL: g.ttl(), KeyTTL: g.ttl(),
	}
	if n := len(g.attempts); n > 0 {
		st.Attempt = g.attempts[n-1-g.rng.IntN(min(n, 2))]
	} else {
		st.Attempt = driver.Attempt{Number: 1, Fence: driver.Fence{Domain: "a", Token: 1 << 63}}
	}
	if g.rng.IntN(3) == 0 {
		st.Decision = driver.Decision{By: "operator", Reason: "because"}
	}
	if g.rng.IntN(3) == 0 {
		st.Repair = &driver.Repair{Kind: driver.KeyKind(g.rng.IntN(5) / 4), Route: "restored", Started: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		st.Repair.ResultTTL, st.Repair.KeyTTL = g.ttl(), g.ttl()
		st.LeaseTrusted = g.rng.IntN(3) > 0
		if n := len(g.attempts); n > 0 && g.rng.IntN(2) == 0 {
			st.Repair.Replaced = driver.Replaced{State: []driver.State{driver.StateReleased, driver.StatePending, driver.StateUnknown}[g.rng.IntN(3)], Attempt: g.attempts[n-1]}
		}
		if g.rng.IntN(2) == 0 { // by a holder of whose Begin the store does not know
			req := g.request()
			st.Attempt = driver.Attempt{Number: 1 + uint32(g.rng.IntN(3)), Fence: req.Fence, Nonce: req.Nonce}
		}
	}
	g.settled = append(g.settled, st)
	return st
}

func describe(r driver.Record, start time.Time) string {
	body := "none"
	if r.Response != nil {
		body = fmt.Sprint(r.Response.Status, len(r.Response.Body))
	}
	at := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return t.Sub(start).String()
	}
	return fmt.Sprint(r.State, r.Kind, r.Route, r.Attempt, r.Fingerprint, body, r.Decision, r.ResultTTL, r.KeyTTL, " ", at(r.Created), at(r.Started),
		at(r.Settled), at(r.ResultExpires), at(r.KeyExpires), at(r.TokenExpires))
}
