package sqlstore

import (
	"database/sql"
	"log/slog"
	"testing"

	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestNilOptionsStandForTheDefaults(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(&waitingConn{})
	defer db.Close()
	c, err := newConfig(db, dialect.SQLite, []Option{WithReadPool(nil), WithLogger(nil), nil})
	must(t, err)
	if c.read != db || c.log != slog.Default() {
		t.Error("a nil pool or logger does not stand for the default")
	}
}
