package redisstore

import (
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// memoryOf completes a key with a body of size bytes, and returns what Redis
// says it uses for the record and for the body's own key.
func memoryOf(tb testing.TB, s *Store, size int) (record, body int64) {
	tb.Helper()
	id, req := newAttempt(driver.ClientKey)
	req.Fence.Domain = "f47ac10b-58cc-4372-a567-0e02b2c3d479" // as an ensemble is named
	a := mustBegin(tb, s, id, req)
	if res, err := s.Settle(tb.Context(), id, completion(a, strings.Repeat("x", size))); err != nil || !res.Settled {
		tb.Fatalf("Settle(%v) = %v, %v, want settled", id, res.Settled, err)
	}
	record, err := s.client.MemoryUsage(tb.Context(), s.keys.record(id)).Result()
	if err != nil {
		tb.Fatal(err)
	}
	body, _ = s.client.MemoryUsage(tb.Context(), s.keys.body(id)).Result() // there may be none
	return record, body
}

func TestMemoryPerRecord(t *testing.T) {
	s := open(t, connect(t, testserver.SharedRedis(t)), WithPrefix("idem-memory"))
	record, body := memoryOf(t, s, 180)
	t.Logf("180-byte body: %d bytes of Redis memory", record)
	if record > 640 || body != 0 {
		t.Errorf("MEMORY USAGE with a 180-byte body = %d and %d apart, want at most 640 and none", record, body)
	}
	record, body = memoryOf(t, s, 64<<10)
	t.Logf("64-KiB body: %d bytes of Redis memory, and %d apart", record, body)
	if record > 400 || body < 64<<10 {
		t.Errorf("MEMORY USAGE with a 64-KiB body = %d and %d apart, want at most 400 and the body", record, body)
	}
}

// The large response's memory is free once the result has expired, and the key
// is still remembered.
func TestLargeResponseIsFreedWithItsResult(t *testing.T) {
	m := startMini(t)
	s := open(t, connect(t, "redis://"+m.Addr()))
	id, req := newAttempt(driver.ClientKey)
	a := mustBegin(t, s, id, req)
	st := completion(a, strings.Repeat("x", 5000))
	if _, err := s.Settle(t.Context(), id, st); err != nil {
		t.Fatal(err)
	}
	if !m.Exists(s.keys.body(id)) {
		t.Fatal("a large response has no key of its own")
	}
	m.Advance(st.ResultTTL)
	if m.Exists(s.keys.body(id)) {
		t.Error("the response is still there when the result has expired")
	}
	if rec, err := s.Get(t.Context(), id); err != nil || rec.State != driver.StateExpired {
		t.Errorf("Get(%v) = %v, %v, want expired", id, rec.State, err)
	}
	m.Advance(st.KeyTTL)
	if m.Exists(s.keys.record(id)) {
		t.Error("the record is still there when the key may be forgotten")
	}
}

// The response of an attempt in doubt has no time to live of its own, and goes with its attempt: when it is released, when
// the next attempt starts from it, and when the Begin of that one is undone before it has arrived. No later call knows of it.
func TestLargeResponseGoesWithItsAttempt(t *testing.T) {
	m := startMini(t)
	s := open(t, connect(t, "redis://"+m.Addr()))
	for name, end := range map[string]func(id driver.KeyID, st driver.Settlement, next driver.BeginRequest) error{
		"release": func(id driver.KeyID, st driver.Settlement, _ driver.BeginRequest) error {
			st.ID, st.State = driver.NewNonce(), driver.StateReleased
			_, err := s.Settle(t.Context(), id, st)
			if n, _ := m.ZMembers(s.keys.open(redisserver.ShardOf(id))); len(n) != 0 {
				t.Errorf("the open set holds %v after the release, want nothing", n)
			}
			return err
		},
		"begin": func(id driver.KeyID, _ driver.Settlement, next driver.BeginRequest) error {
			res, err := s.Begin(t.Context(), id, next)
			if err == nil && !res.Begun {
				t.Errorf("Begin() found %v, want a new attempt", res.Record.State)
			}
			return err
		},
		"abort of a begin that has not arrived": func(id driver.KeyID, _ driver.Settlement, next driver.BeginRequest) error {
			return s.Abort(t.Context(), id, next)
		},
	} {
		t.Run(name, func(t *testing.T) {
			id, req := newAttempt(driver.ClientKey)
			a := mustBegin(t, s, id, req)
			st := completion(a, strings.Repeat("x", 5000))
			st.State = driver.StateUnknown
			if _, err := s.Settle(t.Context(), id, st); err != nil || !m.Exists(s.keys.body(id)) || m.TTL(s.keys.body(id)) != 0 {
				t.Fatalf("Settle() = %v, want a response apart that stays, and not for %v", err, m.TTL(s.keys.body(id)))
			}
			req.Fence.Token++
			req.Nonce, req.RunAgainFrom = driver.NewNonce(), &a
			if err := end(id, st, req); err != nil {
				t.Fatal(err)
			}
			if m.Exists(s.keys.body(id)) {
				t.Error("the response of the earlier attempt is still there")
			}
		})
	}
}

func BenchmarkMemory(b *testing.B) {
	s := open(b, connect(b, testserver.SharedRedis(b)), WithPrefix(freshPrefix(b)))
	var record, body int64
	for b.Loop() {
		record, body = memoryOf(b, s, 180)
	}
	b.ReportMetric(float64(record+body), "redis-B/record")
}

func BenchmarkStore(b *testing.B) {
	client := connect(b, testserver.SharedRedis(b))
	idemtest.BenchmarkStore(b, idemtest.StoreHarness{New: func(tb testing.TB) driver.Store {
		return open(tb, client, WithPrefix(freshPrefix(tb)))
	}})
}

func BenchmarkDecodeRecord(b *testing.B) {
	packed, _ := (&driver.Response{Status: 201, Body: []byte(strings.Repeat("x", 180)),
		Header: map[string][]string{"Content-Type": {"application/json"}}}).AppendBinary(nil)
	data := sampleRecord(b, driver.StateCompleted, placeInline, string(packed))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeRecord(data, "", time.Unix(0, 0)); err != nil {
			b.Fatal(err)
		}
	}
}
