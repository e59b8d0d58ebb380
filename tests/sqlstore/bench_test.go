package sqlstore_test

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func BenchmarkStore(b *testing.B) {
	for _, db := range backends() {
		b.Run(db.name, func(b *testing.B) {
			p := db.migrated(b)
			idemtest.BenchmarkStore(b, idemtest.StoreHarness{New: func(tb testing.TB) driver.Store {
				tb.Helper()
				return db.store(tb, p)
			}})
		})
	}
}

// BenchmarkBeginAmong measures a Begin of a new key among 10 completed records, and among 10,000
// or IDEMKEEPER_BENCH_RECORDS. The goal is that 10 million slow it by at most 20 %. The servers
// sync to the disk, and 1 GiB of memory is for their pages.
func BenchmarkBeginAmong(b *testing.B) {
	n := 10_000
	if text := os.Getenv("IDEMKEEPER_BENCH_RECORDS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	for _, db := range []backend{
		onPostgres("PostgreSQL", testserver.StartPostgres(b, "-c", "shared_buffers=1GB", "-c", "max_wal_size=8GB").URL()),
		onMySQL("MariaDB", testserver.StartMariaDB(b, "--innodb-buffer-pool-size=1G", "--innodb-log-file-size=4G").URL()),
		onSQLite,
	} {
		b.Run(db.name, func(b *testing.B) {
			p := db.fresh(b)
			begin := func(prefix string, records int) func(b *testing.B) {
				must(b, sqlstore.Migrate(b.Context(), p.write, db.dialect, sqlstore.WithTablePrefix(prefix)))
				s := db.store(b, p, sqlstore.WithTablePrefix(prefix), sqlstore.WithExpiry(0))
				fill(b, s, records)
				return func(b *testing.B) {
					var token atomic.Uint64
					b.SetParallelism(8)
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							id := idem.NewKeyID("bench", idem.Key(driver.NewNonce().String()))
							if res, err := s.Begin(b.Context(), id, request(token.Add(1))); err != nil || !res.Begun {
								b.Errorf("Begin() = begun %v, %v, want begun", res.Begun, err)
							}
						}
					})
				}
			}
			few, many := begin("few_", 10), begin("many_", n)
			if db.dialect == dialect.PostgreSQL { // otherwise it does that while we measure
				mustExec(b, p.write, "VACUUM ANALYZE")
				mustExec(b, p.write, "CHECKPOINT")
			}
			b.Run("few", few)
			b.Run("many", many)
		})
	}
}

// fill adds completed records until there are n. Each statement doubles them, in the order of their
// keys, which is faster.
func fill(b *testing.B, s *store, n int) {
	b.Helper()
	id, a := begin(b, s, driver.NewNonce().String())
	st := settlementOf(a, "")
	st.ResultTTL, st.KeyTTL, st.Response.Body = 24*time.Hour, 48*time.Hour, make([]byte, 180)
	must(b, callSettle(b.Context(), s, id, st))
	key := map[dialect.Dialect]string{
		dialect.PostgreSQL: "decode(md5(random()::text) || md5(random()::text), 'hex')", dialect.MySQL: "random_bytes(32)", dialect.SQLite: "randomblob(32)",
	}[s.dialect]
	cols := strings.Join(columns, ", ")
	double := s.sql("INSERT INTO {records} (k, rev, " + cols + ") SELECT " + key + ", rev, " + cols + " FROM {records} WHERE state = 3 ORDER BY 1 LIMIT ?")
	for have := count(b, s, "{records} WHERE state = 3"); have < n; have = count(b, s, "{records} WHERE state = 3") {
		mustExec(b, s.write, double, n-have)
	}
}
