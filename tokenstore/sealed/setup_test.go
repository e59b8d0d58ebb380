package sealed

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testserver.M{M: m}) }

// over wraps a store. Its log goes nowhere.
func over(tb testing.TB, store driver.Store, ring *Ring, opts ...Option) *Store {
	tb.Helper()
	s, err := New(store, ring, append([]Option{WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	if err != nil {
		tb.Fatalf("New() = %v, want <nil>", err)
	}
	return s
}

// onRedis makes stores on one server. raw returns every key and every value under their
// prefix, one after the other.
func onRedis(tb testing.TB) (open func() driver.Store, raw func() []byte) {
	tb.Helper()
	client, err := redisstore.Connect(testserver.SharedRedis(tb))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = client.Close() })
	prefix := strings.TrimSuffix(testserver.KeyPrefix(tb), ":")
	stores := 0
	open = func() driver.Store {
		stores++
		s, err := redisstore.New(context.Background(), client, redisstore.WithPrefix(fmt.Sprint(prefix, "-", stores)), redisstore.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			tb.Fatalf("redis.New() = %v, want <nil>", err)
		}
		return s
	}
	raw = func() []byte {
		var all []byte
		keys := client.Scan(context.Background(), 0, prefix+"*", 1000).Iterator()
		for keys.Next(context.Background()) {
			v, err := client.Dump(context.Background(), keys.Val()).Result()
			if err != nil {
				tb.Fatalf("DUMP %q = %v", keys.Val(), err)
			}
			all = append(append(all, keys.Val()...), v...)
			if v, err := client.Get(context.Background(), keys.Val()).Result(); err == nil {
				all = append(all, v...) // DUMP compresses
			}
		}
		if err := keys.Err(); err != nil {
			tb.Fatal(err)
		}
		return all
	}
	return open, raw
}

func newRequest() (driver.KeyID, driver.BeginRequest) {
	n := driver.NewNonce()
	return idem.NewKeyID("merchant", idem.Key(n.String())), driver.BeginRequest{Route: "http POST /v1/payments", Nonce: n,
		Fence: driver.Fence{Domain: "sealed-test", Token: uint64(time.Now().UnixNano())}, Fingerprint: driver.Fingerprint{Version: 1}}
}

func settlement(a driver.Attempt, state driver.State, resp *driver.Response) driver.Settlement {
	return driver.Settlement{Attempt: a, ID: driver.NewNonce(), State: state, Response: resp, ResultTTL: time.Hour, KeyTTL: 2 * time.Hour}
}

// stored begins a key and settles it, in one store.
func stored(tb testing.TB, s driver.Store, state driver.State, resp *driver.Response) (driver.KeyID, driver.Attempt) {
	tb.Helper()
	id, req := newRequest()
	res, err := s.Begin(context.Background(), id, req)
	if err != nil || !res.Begun {
		tb.Fatalf("Begin() = %v, %v, want begun", res.Begun, err)
	}
	if got, err := s.Settle(context.Background(), id, settlement(res.Record.Attempt, state, resp)); err != nil || !got.Settled {
		tb.Fatalf("Settle() = %v, %v, want settled", got.Settled, err)
	}
	return id, res.Record.Attempt
}

// spy shows what the wrapped store was given and lets a test answer otherwise.
type spy struct {
	driver.Store
	settled []driver.Settlement
	change  func(*driver.Record)
}

func (s *spy) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	rec, err := s.Store.Get(ctx, id)
	if s.change != nil {
		s.change(&rec)
	}
	return rec, err
}

func (s *spy) Begin(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
	res, err := s.Store.Begin(ctx, id, req)
	if s.change != nil {
		s.change(&res.Record)
	}
	return res, err
}

func (s *spy) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
	s.settled = append(s.settled, st)
	return s.Store.Settle(ctx, id, st)
}
