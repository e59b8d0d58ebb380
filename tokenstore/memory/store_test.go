package memorystore_test

import (
	"math"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
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
		New:     func(testing.TB) idem.Store { return memorystore.New(memorystore.WithClock(c.Now)) },
		Advance: c.Advance,
	})
}

func TestStoreByTheRealClock(t *testing.T) {
	idemtest.RunStore(t, idemtest.StoreHarness{New: func(testing.TB) idem.Store { return memorystore.New(nil) }})
}

func TestReach(t *testing.T) {
	if got := memorystore.New().Visibility(); got != idem.VisibilityProcess {
		t.Errorf("Visibility() = %v, want %v", got, idem.VisibilityProcess)
	}
}

// Calls for other keys remove expired records.
func TestExpiredRecordsAreRemoved(t *testing.T) {
	c := newClock()
	s := memorystore.New(memorystore.WithClock(c.Now))
	const n = 1000
	for i := range n {
		id := idem.KeyID{byte(i), byte(i >> 8)}
		if _, err := s.Issue(t.Context(), id, time.Hour+time.Duration(i*7919%n)*time.Second); err != nil {
			t.Fatalf("Issue(%v) = %v, want <nil>", id, err)
		}
	}
	if got := s.Len(); got != n {
		t.Fatalf("Len() = %d, want %d", got, n)
	}
	c.Advance(time.Hour + n*time.Second)
	for i := range 256 {
		if err := s.Abort(t.Context(), idem.KeyID{byte(i), 0xff}, idem.BeginRequest{Kind: idem.IssuedToken}); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Len(); got != 0 {
		t.Errorf("Len() after expiry = %d, want 0", got)
	}
}

// A result that is kept for ever outlives the shorter time of an earlier attempt.
// The store keeps the newest 1,000 decisions, so many of them take no more memory.
func TestOldestDecisionsAreForgotten(t *testing.T) {
	s := memorystore.New()
	ids := make([]idem.KeyID, 1001)
	for i := range ids {
		ids[i] = idem.NewKeyID("", idem.Key(idem.NewNonce().String()))
		got, err := s.Begin(t.Context(), ids[i], idem.BeginRequest{Kind: idem.ClientKey, Nonce: idem.NewNonce(), Fence: idem.Fence{Domain: "d", Token: 1}, KeyTTL: time.Hour})
		if err != nil || !got.Begun {
			t.Fatalf("Begin() = %+v, %v", got, err)
		}
		settled, err := s.Settle(t.Context(), ids[i], idem.Settlement{Attempt: got.Record.Attempt, ID: idem.NewNonce(), State: idem.StateReleased,
			KeyTTL: time.Hour, ResultTTL: time.Hour, Decision: idem.Decision{By: "ops"}})
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

func TestResultsKeptForEver(t *testing.T) {
	c := newClock()
	s := memorystore.New(memorystore.WithClock(c.Now))
	id := idem.NewKeyID("m", "k")
	for fence, st := range []idem.Settlement{
		{State: idem.StateReleased, KeyTTL: time.Hour},
		{State: idem.StateCompleted, Response: &idem.Response{Status: 201}, ResultTTL: math.MaxInt64, KeyTTL: math.MaxInt64},
	} {
		got, err := s.Begin(t.Context(), id, idem.BeginRequest{Fence: idem.Fence{Domain: "d", Token: uint64(fence) + 1}, Nonce: idem.NewNonce()})
		if err != nil || !got.Begun {
			t.Fatalf("Begin(%v) = %v, %v, want begun", id, got.Begun, err)
		}
		st.Attempt, st.ID = got.Record.Attempt, got.Record.Attempt.Nonce
		if _, err := s.Settle(t.Context(), id, st); err != nil {
			t.Fatalf("Settle(%v, %v) = %v, want <nil>", id, st.State, err)
		}
	}
	c.Advance(2 * time.Hour)
	if rec, err := s.Get(t.Context(), id); err != nil || rec.State != idem.StateCompleted {
		t.Errorf("Get(%v) after two hours = %v, %v, want completed", id, rec.State, err)
	}
}

// The store keeps a copy of a response, and every reader gets its own.
func TestResponsesAreCopies(t *testing.T) {
	s := memorystore.New()
	id, body := idem.NewKeyID("m", "copy"), []byte("paid")
	begun, err := s.Begin(t.Context(), id, idem.BeginRequest{Fence: idem.Fence{Domain: "d", Token: 1}, Nonce: idem.NewNonce()})
	if err != nil {
		t.Fatalf("Begin(%v) = %v, want <nil>", id, err)
	}
	st := idem.Settlement{Attempt: begun.Record.Attempt, State: idem.StateCompleted, Response: &idem.Response{Status: 201, Body: body}, ResultTTL: time.Hour}
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
	idemtest.BenchmarkStore(b, idemtest.StoreHarness{New: func(testing.TB) idem.Store { return memorystore.New() }})
}
