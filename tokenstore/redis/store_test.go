package redisstore

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) {
	testserver.ParallelTests(6) // most of them wait for a server
	goleak.VerifyTestMain(testserver.M{M: m})
}

// connect returns a client as Connect makes it, closed when the test ends. It is
// given more time: miniredis under the race detector is slow, and what tests say
// of deadlines they say of the context's.
func connect(tb testing.TB, addr string) goredis.UniversalClient {
	tb.Helper()
	o, err := parseAddr(addr)
	if err != nil {
		tb.Fatalf("parseAddr(%q) = %v, want <nil>", addr, err)
	}
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = 20*time.Second, 20*time.Second, 20*time.Second, 20*time.Second
	client := goredis.NewUniversalClient(o)
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// open returns a store on client.
func open(tb testing.TB, client goredis.UniversalClient, opts ...Option) *Store {
	tb.Helper()
	s, err := New(tb.Context(), client, append([]Option{quiet(), clocksFor(client)}, opts...)...)
	if err != nil {
		tb.Fatalf("New() = %v, want <nil>", err)
	}
	return s
}

// mini is a miniredis whose clock and expiries move together. The clocks of the stores on it
// move along.
type mini struct {
	*miniredis.Miniredis
	mu  sync.Mutex
	now time.Time
	// How far the wall clock and the lease clock of the process are ahead of now.
	wallBy, leaseBy time.Duration
}

var minis sync.Map // by address

// clocksFor gives a store the clocks of its mini. Other servers have the real time.
func clocksFor(client goredis.UniversalClient) Option {
	single, _ := client.(*goredis.Client)
	if single == nil {
		return nil
	}
	m, there := minis.Load(single.Options().Addr)
	if !there {
		return nil
	}
	return withClocks(m.(*mini).wall, m.(*mini).lease)
}

// withClocks sets the clocks of the process.
func withClocks(wall func() time.Time, lease leaseclock.Source) Option {
	return func(c *config) { c.wall, c.lease = wall, lease }
}

// WithProcessClocks is for the tests of the other package.
var WithProcessClocks = withClocks

func (m *mini) wall() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.Add(m.wallBy)
}

func (m *mini) lease() leaseclock.Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	return leaseclock.Instant{}.Add(m.now.Add(m.leaseBy).Sub(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)))
}

func startMini(tb testing.TB) *mini {
	tb.Helper()
	m := &mini{Miniredis: miniredis.NewMiniRedis(), now: time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)}
	m.SetTime(m.now)
	if err := m.Start(); err != nil {
		tb.Fatalf("miniredis: %v", err)
	}
	tb.Cleanup(m.Close)
	addr := m.Addr()
	minis.Store(addr, m)
	tb.Cleanup(func() { minis.Delete(addr) })
	return m
}

// Elapse moves all clocks. Keys do not expire by themselves.
func (m *mini) Elapse(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.now.Add(d)
	m.SetTime(m.now)
}

func (m *mini) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = m.now.Add(d)
	m.SetTime(m.now)
	m.FastForward(d)
}

func TestStoreOnMiniredis(t *testing.T) {
	t.Parallel()
	m := startMini(t)
	s := open(t, connect(t, "redis://"+m.Addr()))
	empty := m.Keys()
	idemtest.RunStore(t, idemtest.StoreHarness{
		New: func(testing.TB) driver.Store { // miniredis takes long to open a store
			for _, key := range m.Keys() {
				if !slices.Contains(empty, key) {
					m.Del(key)
				}
			}
			return s
		},
		Advance: m.Advance,
		Damage:  damage,
	})
}

func TestStoreOnCluster(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3)
	client := connect(t, clusterAddr(c))
	idemtest.RunStore(t, idemtest.StoreHarness{Damage: damage, New: func(tb testing.TB) driver.Store {
		return open(tb, client, WithPrefix(freshPrefix(tb)))
	}})
}

func clusterAddr(c *testserver.RedisCluster) string {
	return "redis://" + strings.Join(c.Addrs(), ",redis://")
}

func freshPrefix(tb testing.TB) string { return strings.TrimSuffix(testserver.KeyPrefix(tb), ":") }

func TestReach(t *testing.T) {
	s := open(t, connect(t, "redis://"+startMini(t).Addr()), nil)
	if got := s.Visibility(); got != driver.VisibilityShared {
		t.Errorf("Visibility() = %v, want %v", got, driver.VisibilityShared)
	}
}

// newAttempt returns a Begin of a new attempt on a new key.
func newAttempt(kind driver.KeyKind) (driver.KeyID, driver.BeginRequest) {
	fp, _ := idem.NewFingerprint(1, "http POST /v1/payments", "10.00")
	n := driver.NewNonce()
	return idem.NewKeyID("test", idem.Key(n.String())), driver.BeginRequest{
		Kind: kind, Route: "http POST /v1/payments", Nonce: n, Fingerprint: fp,
		ResultTTL: time.Hour, KeyTTL: 2 * time.Hour, // those of [completion], as an engine has them
		Fence: driver.Fence{Domain: "redis-test", Token: uint64(time.Now().UnixNano())},
	}
}

func mustBegin(tb testing.TB, s *Store, id driver.KeyID, req driver.BeginRequest) driver.Attempt {
	tb.Helper()
	res, err := s.Begin(context.Background(), id, req)
	if err != nil || !res.Begun {
		tb.Fatalf("Begin(%v) = begun %v, %v, want begun", id, res.Begun, err)
	}
	return res.Record.Attempt
}

func completion(a driver.Attempt, body string) driver.Settlement {
	return driver.Settlement{
		Attempt: a, ID: a.Nonce, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: 2 * time.Hour,
		Response: &driver.Response{Status: 201, Header: map[string][]string{"Content-Type": {"application/json"}}, Body: []byte(body)},
	}
}

// Positions in a packed record.
const (
	atPlace   = 3
	atLengths = 117
)

// damage changes the record of a key in Redis.
func damage(tb testing.TB, store driver.Store, id driver.KeyID, d idemtest.Damage) {
	tb.Helper()
	s := store.(*Store)
	at := s.keys.record(id)
	record, err := s.client.Get(tb.Context(), at).Result()
	if err != nil {
		tb.Fatalf("GET %s: %v", at, err)
	}
	response := len(record) // where in the value it starts
	value := record
	if record[atPlace] == placeInline {
		response = headerSize + int(record[atLengths]) + int(record[atLengths+1]) + int(record[atLengths+2]) +
			int(record[atLengths+3])<<8 + int(record[atLengths+4])
	}
	if record[atPlace] == placeApart && strings.HasPrefix(string(d), "a response") {
		at, response = s.keys.body(id), 0
		if value, err = s.client.Get(tb.Context(), at).Result(); err != nil {
			tb.Fatalf("GET %s: %v", at, err)
		}
	}
	switch d {
	case idemtest.NewerRecord:
		value = string([]byte{recordVersion + 1}) + value[1:]
	case idemtest.OlderRecord:
		value = string([]byte{recordVersion - 1}) + value[1:]
	case idemtest.EmptyRecord:
		value = ""
	case idemtest.CutRecord:
		value = value[:headerSize+3]
	case idemtest.GarbageRecord:
		value = strings.Repeat(string([]byte{recordVersion})+"garbage", 40)
	case idemtest.CutResponse:
		value = value[:len(value)-1]
	case idemtest.EmptyResponse:
		value = value[:response]
	case idemtest.ExtendedResponse:
		value += "}"
	case idemtest.ChangedResponse:
		value = value[:response+1+(len(value)-response)/2] + "\xfe" + value[response+2+(len(value)-response)/2:]
	default:
		tb.Fatalf("no damage is called %q", d)
	}
	if err := s.client.SetArgs(tb.Context(), at, value, goredis.SetArgs{KeepTTL: true}).Err(); err != nil {
		tb.Fatalf("SET %s: %v", at, err)
	}
}
