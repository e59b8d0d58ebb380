package memorystore_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a time that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestStore(t *testing.T) {
	c := newClock()
	idemtest.RunStore(t, idemtest.StoreHarness{
		New:     func(testing.TB) driver.Store { return memorystore.New(memorystore.WithClock(c.Now)) },
		Advance: c.Advance,
	})
}

func TestStoreByTheRealClock(t *testing.T) {
	idemtest.RunStore(t, idemtest.StoreHarness{New: func(testing.TB) driver.Store { return memorystore.New(nil, memorystore.WithClock(nil)) }})
}

func TestReach(t *testing.T) {
	if got := memorystore.New().Visibility(); got != driver.VisibilityProcess {
		t.Errorf("Visibility() = %v, want %v", got, driver.VisibilityProcess)
	}
}

// sweep makes enough calls for other keys to remove every expired record.
func sweep(t *testing.T, s *memorystore.Store) {
	t.Helper()
	for i := range 256 {
		if err := s.Abort(t.Context(), driver.KeyID{byte(i), 0xff}, driver.BeginRequest{Kind: driver.IssuedToken}); err != nil {
			t.Fatal(err)
		}
	}
}

// Calls for other keys remove expired records, in the order in which they expire.
func TestExpiredRecordsAreRemoved(t *testing.T) {
	c := newClock()
	s := memorystore.New(memorystore.WithClock(c.Now))
	const n = 1000
	for i := range n {
		id := driver.KeyID{byte(i), byte(i >> 8)}
		if _, err := s.Issue(t.Context(), id, time.Hour+time.Duration(i*7919%n)*time.Second); err != nil {
			t.Fatalf("Issue(%v) = %v, want <nil>", id, err)
		}
	}
	for _, step := range []struct {
		advance time.Duration
		want    int
	}{{0, n}, {time.Hour + n/2*time.Second, n/2 - 1}, {n / 2 * time.Second, 0}} {
		c.Advance(step.advance)
		sweep(t, s)
		if got := s.Len(); got != step.want {
			t.Errorf("Len() %v later = %d, want %d", step.advance, got, step.want)
		}
	}
}

// The key of an expired result is removed too, when its own time is over.
func TestExpiredResultsAreRemoved(t *testing.T) {
	c := newClock()
	s := memorystore.New(memorystore.WithClock(c.Now))
	id := idem.NewKeyID("m", "k")
	got, err := s.Begin(t.Context(), id, driver.BeginRequest{Fence: driver.Fence{Domain: "d", Token: 1}, Nonce: driver.NewNonce()})
	if err != nil || !got.Begun {
		t.Fatalf("Begin(%v) = %v, %v, want begun", id, got.Begun, err)
	}
	st := driver.Settlement{Attempt: got.Record.Attempt, State: driver.StateCompleted, Response: &driver.Response{Status: 201}, ResultTTL: time.Hour, KeyTTL: 2 * time.Hour}
	if _, err := s.Settle(t.Context(), id, st); err != nil {
		t.Fatalf("Settle(%v) = %v, want <nil>", id, err)
	}
	for _, want := range []int{1, 0} {
		c.Advance(time.Hour)
		sweep(t, s)
		if got := s.Len(); got != want {
			t.Errorf("Len() at %v = %d, want %d", c.Now(), got, want)
		}
	}
}

// A call whose context has ended does nothing.
func TestEndedContext(t *testing.T) {
	s := memorystore.New()
	id, other := idem.NewKeyID("m", "k"), idem.NewKeyID("m", "other")
	req := driver.BeginRequest{Fence: driver.Fence{Domain: "d", Token: 1}, Nonce: driver.NewNonce()}
	begun, err := s.Begin(t.Context(), id, req)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func() error{
		"Get":   func() error { _, err := s.Get(ctx, id); return err },
		"Issue": func() error { _, err := s.Issue(ctx, other, time.Hour); return err },
		"Begin": func() error { _, err := s.Begin(ctx, other, req); return err },
		"Settle": func() error {
			_, err := s.Settle(ctx, id, driver.Settlement{Attempt: begun.Record.Attempt, State: driver.StateReleased})
			return err
		},
		"Abort":         func() error { return s.Abort(ctx, id, req) },
		"ListOpen":      func() error { _, err := s.ListOpen(ctx, driver.OpenQuery{}); return err },
		"RetireDomain":  func() error { return s.RetireDomain(ctx, "d", driver.Decision{}) },
		"DomainRetired": func() error { _, err := s.DomainRetired(ctx, "d"); return err },
		"Ping":          func() error { return s.Ping(ctx) },
		"Clock":         func() error { _, err := s.Clock(ctx); return err },
		"Decisions":     func() error { _, err := s.Decisions(ctx, id); return err },
		"EachKey": func() error {
			return s.EachKey(ctx, func(id driver.KeyID) bool { t.Errorf("EachKey() named %v", id); return true })
		},
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s() = %v, want %v", name, err, context.Canceled)
		}
	}
	rec, err := s.Get(t.Context(), id)
	retired, retiredErr := s.DomainRetired(t.Context(), "d")
	if err != nil || rec.Attempt != begun.Record.Attempt || rec.State != driver.StatePending || s.Len() != 1 || retired || retiredErr != nil {
		t.Errorf("afterwards %d records, %+v, %v, domain retired: %v, %v, want all as before", s.Len(), rec, err, retired, retiredErr)
	}
}

// The store keeps the newest 1,000 decisions, so many of them take no more memory.
func TestOldestDecisionsAreForgotten(t *testing.T) {
	s := memorystore.New()
	ids := make([]driver.KeyID, 1001)
	for i := range ids {
		ids[i] = idem.NewKeyID("", idem.Key(driver.NewNonce().String()))
		got, err := s.Begin(t.Context(), ids[i], driver.BeginRequest{Kind: driver.ClientKey, Nonce: driver.NewNonce(), Fence: driver.Fence{Domain: "d", Token: 1}, KeyTTL: time.Hour})
		if err != nil || !got.Begun {
			t.Fatalf("Begin() = %+v, %v", got, err)
		}
		settled, err := s.Settle(t.Context(), ids[i], driver.Settlement{Attempt: got.Record.Attempt, ID: driver.NewNonce(), State: driver.StateReleased,
			KeyTTL: time.Hour, ResultTTL: time.Hour, Decision: driver.Decision{By: "ops"}})
		if err != nil || !settled.Settled {
			t.Fatalf("Settle() = %+v, %v", settled, err)
		}
	}
	for i, want := range map[int]int{0: 0, 1: 1, 1000: 1} {
		if list, err := s.Decisions(t.Context(), ids[i]); err != nil || len(list) != want {
			t.Errorf("Decisions() of key %d = %v, %v; want %d", i, list, err, want)
		}
	}
}

// A result that is kept for ever outlives the shorter time of an earlier attempt.
func TestResultsKeptForEver(t *testing.T) {
	c := newClock()
	s := memorystore.New(memorystore.WithClock(c.Now))
	id := idem.NewKeyID("m", "k")
	for fence, st := range []driver.Settlement{
		{State: driver.StateReleased, KeyTTL: time.Hour},
		{State: driver.StateCompleted, Response: &driver.Response{Status: 201}, ResultTTL: math.MaxInt64, KeyTTL: math.MaxInt64},
	} {
		got, err := s.Begin(t.Context(), id, driver.BeginRequest{Fence: driver.Fence{Domain: "d", Token: uint64(fence) + 1}, Nonce: driver.NewNonce()})
		if err != nil || !got.Begun {
			t.Fatalf("Begin(%v) = %v, %v, want begun", id, got.Begun, err)
		}
		st.Attempt, st.ID = got.Record.Attempt, got.Record.Attempt.Nonce
		if _, err := s.Settle(t.Context(), id, st); err != nil {
			t.Fatalf("Settle(%v, %v) = %v, want <nil>", id, st.State, err)
		}
	}
	c.Advance(2 * time.Hour)
	if rec, err := s.Get(t.Context(), id); err != nil || rec.State != driver.StateCompleted {
		t.Errorf("Get(%v) after two hours = %v, %v, want completed", id, rec.State, err)
	}
}

// The store keeps a copy of a response, and every reader gets its own.
func TestResponsesAreCopies(t *testing.T) {
	s := memorystore.New()
	id, body := idem.NewKeyID("m", "copy"), []byte("paid")
	begun, err := s.Begin(t.Context(), id, driver.BeginRequest{Fence: driver.Fence{Domain: "d", Token: 1}, Nonce: driver.NewNonce()})
	if err != nil {
		t.Fatalf("Begin(%v) = %v, want <nil>", id, err)
	}
	st := driver.Settlement{Attempt: begun.Record.Attempt, State: driver.StateCompleted, Response: &driver.Response{Status: 201, Body: body}, ResultTTL: time.Hour}
	if _, err := s.Settle(t.Context(), id, st); err != nil {
		t.Fatalf("Settle(%v) = %v, want <nil>", id, err)
	}
	body[0] = 'X'
	for range 2 {
		rec, err := s.Get(t.Context(), id)
		if err != nil || string(rec.Response.Body) != "paid" {
			t.Fatalf("Get(%v) = %q, %v, want %q", id, rec.Response.Body, err, "paid")
		}
		rec.Response.Body[0] = 'Y'
	}
}

func BenchmarkStore(b *testing.B) {
	idemtest.BenchmarkStore(b, idemtest.StoreHarness{New: func(testing.TB) driver.Store { return memorystore.New() }})
}
