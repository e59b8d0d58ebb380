package sqlstore

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

func BenchmarkStore(b *testing.B) {
	for _, db := range backends() {
		b.Run(db.name, func(b *testing.B) {
			p := db.migrated(b)
			idemtest.BenchmarkStore(b, idemtest.StoreHarness{New: func(tb testing.TB) idem.Store {
				tb.Helper()
				return db.store(tb, p)
			}})
		})
	}
}

// BenchmarkBeginAmong measures a Begin of a new key among completed records. There are 10,000,
// or IDEMKEEPER_BENCH_RECORDS. The goal is that 10 million slow it by at most 20 %.
func BenchmarkBeginAmong(b *testing.B) {
	n := 10_000
	if text := os.Getenv("IDEMKEEPER_BENCH_RECORDS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	for _, db := range backends() {
		b.Run(db.name, func(b *testing.B) {
			p := db.migrated(b)
			s := db.store(b, p, WithExpiry(0))
			rounds := map[string]int{"few": 10, "many": n}
			for _, name := range []string{"few", "many"} {
				fill(b, s, rounds[name])
				b.Run(name, func(b *testing.B) {
					var token atomic.Uint64
					b.SetParallelism(8)
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							id := idem.NewKeyID("bench", idem.Key(idem.NewNonce().String()))
							if res, err := s.Begin(b.Context(), id, request(token.Add(1))); err != nil || !res.Begun {
								b.Errorf("Begin() = begun %v, %v, want begun", res.Begun, err)
							}
						}
					})
				})
			}
		})
	}
}

// fill adds completed records until there are n. Each statement doubles them.
func fill(b *testing.B, s *Store, n int) {
	b.Helper()
	id, a := begin(b, s, idem.NewNonce().String())
	st := settlementOf(a, "")
	st.ResultTTL, st.KeyTTL, st.Response.Body = 24*time.Hour, 48*time.Hour, make([]byte, 180)
	if err := callSettle(b.Context(), s, id, st); err != nil {
		b.Fatal(err)
	}
	key := map[*dialect]string{
		postgres: "decode(md5(random()::text) || md5(random()::text), 'hex')", mysql: "random_bytes(32)", sqlite: "randomblob(32)",
	}[s.dialect]
	cols := strings.Join(columns, ", ")
	double := s.names.sql("INSERT INTO {records} (k, rev, " + cols + ") SELECT " + key + ", rev, " + cols + " FROM {records} WHERE state = 3 LIMIT ?")
	for have := count(b, s, "{records} WHERE state = 3"); have < n; have = count(b, s, "{records} WHERE state = 3") {
		mustExec(b, s.db, double, n-have)
	}
}
