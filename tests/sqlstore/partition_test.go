package sqlstore_test

import (
	"os"
	"testing"

	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// partitioning returns the statements in deploy/partitions, to which docs/sql.md leads.
func partitioning(t *testing.T, b backend) string {
	t.Helper()
	file := "mysql.sql"
	if b.dialect == dialect.PostgreSQL {
		file = "postgres.sql"
	}
	text, err := os.ReadFile("../../deploy/partitions/" + file)
	must(t, err)
	return string(text)
}

// partition partitions the table of records.
func partition(t *testing.T, b backend, p pools) {
	t.Helper()
	conn, err := p.write.Conn(t.Context())
	must(t, err)
	defer conn.Close()
	must(t, errOf(conn.ExecContext(t.Context(), partitioning(t, b))))
}

// The records of a partitioned table keep all promises, in both modes, and what the table had stays.
func TestPartitionedTable(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		s := startService(t, b, serviceParts{})
		s.want(s.pay("before"), paid)
		reader, asReader := newUser(t, b, s.pools)
		grant(t, b, s.pools, sqlstore.RoleReader, reader)
		partition(t, b, s.pools)
		if shown := get[int](t, asReader, "SELECT count(*) FROM idem_readable WHERE state = 'completed'"); shown != 1 {
			t.Errorf("a reader sees %d records in the view, want 1", shown)
		}
		again := startService(t, b, serviceParts{pools: &s.pools})
		again.want(again.pay("before"), paidBefore)
		again.want(again.pay("after"), paid)
		again.want(again.pay("after"), paidBefore)
		again.with(again.paying(500))
		again.want(again.pay("failed"), answer{status: 500, body: "paid"})
		again.with(again.paying(402))
		again.want(again.pay("declined"), answer{status: 402, body: "paid"})
		again.wantPayments(2)
		runStore(t, b.store(t, s.pools))
	})
}

// Migrations of later versions run on a partitioned table, too.
func TestPartitionedTableIsMigrated(t *testing.T) {
	t.Parallel()
	onFirstVersion(t, 100, func(t *testing.T, b backend, p pools) {
		partition(t, b, p)
		wantLater(t, b, p)
		if n := get[int](t, p.read, "SELECT count(*) FROM idem_readable"); n != 100 {
			t.Errorf("%d records after the migration, want 100", n)
		}
		if b.dialect != dialect.PostgreSQL {
			return
		}
		if n := get[int](t, p.read, "SELECT count(*) FROM pg_partition_tree('idem_records') t JOIN pg_class c ON c.oid = t.relid "+
			"WHERE t.isleaf AND c.reloptions::text LIKE '%autovacuum_vacuum_scale_factor=0.01%'"); n != 16 {
			t.Errorf("autovacuum comes early in %d partitions, want 16", n)
		}
	})
}
