package sqlstore

import (
	"testing"

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
