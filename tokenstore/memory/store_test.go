package memorystore_test

import (
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
	if got := memorystore.New().Reach(); got != idem.ReachProcess {
		t.Errorf("Reach() = %v, want %v", got, idem.ReachProcess)
	}
}

// What expires is removed by later writes to the same shard, whatever they write.
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

func BenchmarkStore(b *testing.B) {
	idemtest.BenchmarkStore(b, idemtest.StoreHarness{New: func(testing.TB) idem.Store { return memorystore.New() }})
}
