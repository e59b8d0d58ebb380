package sqlstore

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Services in different schemas of one database know nothing of each other's keys, although
// advisory locks are the database's. The schema is that of the connection.
func TestJoinedKeysOfAnotherSchemaAreFree(t *testing.T) {
	t.Parallel()
	p := freshPostgres(t)
	in := func(schema string) *service {
		mustExec(t, p.write, "CREATE SCHEMA "+schema)
		db := p.with(t, "search_path="+schema)
		return startService(t, backend{"PostgreSQL", dialect.PostgreSQL, func(testing.TB) pools { return pools{db, db, p.dsn} }}, serviceParts{})
	}
	one, two := in("one"), in("two")
	finish := one.started("k1")
	two.wantState("k1", driver.StateNone)
	two.want(two.pay("k1"), paid)
	one.want(finish(), paid)
}
