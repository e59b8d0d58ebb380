package sqlstore_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// TestJoinedCommitThatAFailoverLostIsRolledBack promotes a standby that has not seen a commit.
// The client gets no answer from the old primary, and the new one is the truth.
func TestJoinedCommitThatAFailoverLostIsRolledBack(t *testing.T) {
	t.Parallel()
	primary := testserver.StartPostgres(t)
	host := func(dsn string) string { return parsed(t, dsn).Host }
	replication := testserver.StartTCPProxy(t, host(primary.URL()))
	standby := testserver.StartStandby(t, replication.Addr())
	front := testserver.StartTCPProxy(t, host(primary.URL()))
	dsn := "postgres://idemkeeper@" + front.Addr() + "," + host(standby.URL()) + "/postgres?sslmode=disable&target_session_attrs=read-write"
	s := startService(t, onPostgres("PostgreSQL", dsn), serviceParts{})
	replica := open(t, "pgx", standby.URL())
	s.want(s.pay("replicated"), paid)
	s.eventually("the standby has the payment", func() bool {
		return holds(replica, "SELECT count(*) = 1 FROM payments")
	})
	replication.Refuse(true)
	replication.Cut()

	hold := front.HoldNextReply(testserver.Contains("commit\x00"))
	done := make(chan answer, 1)
	go func() { done <- s.pay("lost") }()
	<-hold.Held() // the old primary has committed
	old := open(t, "pgx", primary.URL())
	if n := get[int](t, old, "SELECT count(*) FROM payments"); n != 2 {
		t.Errorf("the old primary has %d payments, want 2", n)
	}
	front.Refuse(true)
	primary.Kill()
	mustExec(t, replica, "SELECT pg_promote()")
	front.Cut()
	hold.Release()
	s.want(<-done, refused(503, idem.CodeUnavailable))
	s.wantPayments(1)
	s.want(s.pay("lost"), paid)
	s.want(s.pay("replicated"), paidBefore)
	s.wantPayments(2)
}

// TestJoinedDatabaseThatRefusesWritesIsUnavailable covers a read-only database, and missing tables.
func TestJoinedDatabaseThatRefusesWritesIsUnavailable(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		mustExec(s, s.pools.write, "ALTER TABLE idem_records RENAME TO away")
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		mustExec(s, s.pools.write, "ALTER TABLE away RENAME TO idem_records")
		s.wantOnePayment("k1")
	})
	s := startOn(t, dialect.PostgreSQL, serviceParts{})
	for _, conn := range connections(t, s.pools.write) {
		must(t, errOf(conn.ExecContext(context.Background(), "SET default_transaction_read_only = on")))
		_ = conn.Close()
	}
	s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
	s.wantPayments(0)
}

// connections takes every connection of a pool.
func connections(t *testing.T, db *sql.DB) (list []*sql.Conn) {
	t.Helper()
	for range db.Stats().MaxOpenConnections {
		conn, err := db.Conn(context.Background())
		must(t, err)
		list = append(list, conn)
	}
	return list
}
