package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// leftBehind has every session of a pool do something that others then find.
func (s *service) leftBehind(statements ...string) {
	s.Helper()
	var conns []*sql.Conn
	for range 8 {
		conn, err := s.pools.write.Conn(context.Background())
		must(s, err)
		conns = append(conns, conn)
		for _, statement := range statements {
			if _, err := conn.ExecContext(context.Background(), statement); err != nil {
				s.Fatalf("%s: %v", statement, err)
			}
		}
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// Another user of the pool, or the handler, has its sessions look elsewhere for tables that are there too.
func TestJoinedFindsItsTablesWhateverOthersLeaveInASession(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		s := startService(t, b, serviceParts{})
		elsewhere, leave := "tenant", "SET search_path TO tenant, public"
		if b.dialect == dialect.MySQL {
			elsewhere = freshName(t)
			leave = "USE " + elsewhere
			mustExec(t, s.pools.write, "CREATE DATABASE "+elsewhere)
			t.Cleanup(func() { mustExec(t, s.pools.write, "DROP DATABASE "+elsewhere) })
		} else {
			mustExec(t, s.pools.write, "CREATE SCHEMA "+elsewhere)
		}
		must(t, sqlstore.Migrate(t.Context(), s.pools.write, b.dialect, sqlstore.WithSchema(elsewhere)))
		ledger := "payments"
		if b.dialect == dialect.MySQL {
			ledger = get[string](t, s.pools.read, "SELECT concat(database(), '.payments')")
		}
		pay := "INSERT INTO " + ledger + " (op, amount) VALUES ('x', 1)"
		s.with(s.sending(201, pay))
		s.want(s.pay("before"), paid)
		s.leftBehind(leave)
		s.want(s.pay("before"), paidBefore)
		s.want(s.pay("after"), paid)
		s.want(s.pay("after"), paidBefore)
		if b.dialect == dialect.PostgreSQL {
			s.with(s.sending(201, "CREATE TEMP TABLE idem_records (LIKE public.idem_records) ON COMMIT DROP", pay))
			s.want(s.pay("shadowed"), paid)
			s.want(s.pay("shadowed"), paidBefore)
		}
	})
}

// The commit of a record and of its payment is on the disk, whatever the session says.
func TestJoinedCommitsDurablyWhateverOthersLeaveInASession(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.PostgreSQL, serviceParts{})
	s.leftBehind("SET synchronous_commit = off")
	// A deferred trigger sees the setting that counts for the commit.
	mustExec(t, s.pools.read, "CREATE TABLE seen (setting text)")
	mustExec(t, s.pools.read, "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$")
	mustExec(t, s.pools.read, "CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON idem_records DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()")
	s.want(s.pay("k1"), paid)
	s.with(s.paying(402))
	s.want(s.pay("k2"), answer{status: 402, body: "paid"})
	s.with(s.sending(201, "SET synchronous_commit = off"))
	s.want(s.pay("k3"), paid)
	var on, all int
	if err := s.pools.read.QueryRow("SELECT count(*) FILTER (WHERE setting = 'on'), count(*) FROM seen").Scan(&on, &all); err != nil || all == 0 || on != all {
		t.Errorf("%d of %d commits were synchronous, %v", on, all, err)
	}
}

// Others, or the handler, stop the clock of a session. A record of that time would be over at once.
func TestJoinedKeyLastsWhateverClockOthersLeaveInASession(t *testing.T) {
	t.Parallel()
	onMariaDB(t, serviceParts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }}, func(s *service) {
		const stop = "SET timestamp = 1000000000"
		s.leftBehind(stop)
		s.want(s.pay("paid"), paid)
		s.with(s.paying(402))
		s.want(s.pay("refused"), answer{status: 402, body: "paid"})
		s.leftBehind("SET timestamp = DEFAULT")
		s.with(s.sending(201, stop, "pay"))
		s.want(s.pay("stopped-by-the-handler"), paid)
		s.leftBehind("SET timestamp = DEFAULT")
		s.with(s.paying(201))
		s.want(s.pay("paid"), paidBefore)
		s.want(s.pay("refused"), answer{status: 402, body: "paid", replayed: true})
		s.want(s.pay("stopped-by-the-handler"), paidBefore)
		s.wantPayments(2)
	})
}

// Others have turned off the writing to the disk in the one connection for writing.
func TestJoinedOnSQLiteCommitsDurably(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.SQLite, serviceParts{})
	mustExec(t, s.pools.write, "PRAGMA synchronous = OFF")
	s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
		var synchronous int
		err := tx.QueryRow("PRAGMA synchronous").Scan(&synchronous)
		if synchronous != 2 {
			t.Errorf("synchronous = %d, want 2 (FULL)", synchronous)
		}
		c.String(201, "paid")
		return err
	}))
	s.want(s.pay("k1"), paid)
}

// A role without rights that others have left in the sessions refuses every payment, and keeps none of their keys.
func TestJoinedRoleLeftInASessionPaysNothing(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.PostgreSQL, serviceParts{})
	role := freshName(t)
	mustExec(t, s.pools.write, "CREATE ROLE "+role)
	defer mustExec(t, s.pools.read, "DROP ROLE "+role)
	s.leftBehind("SET ROLE " + role)
	s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
	s.leftBehind("RESET ROLE")
	s.wantOnePayment("k1")
	s.wantNothingOpen("at the end")
}

// The DBA's limit for idle transactions is shorter than that of the option.
func TestJoinedKeepsAShorterIdleLimit(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		s := startService(t, b, serviceParts{})
		type limit struct {
			set, show, shown string
			left             time.Duration
		}
		limits := []limit{
			{"idle_in_transaction_session_timeout = '2s'", "SHOW idle_in_transaction_session_timeout", "2s", 2 * time.Second},
			{"idle_in_transaction_session_timeout = 0", "SHOW idle_in_transaction_session_timeout", "1min", time.Minute},
			{"idle_in_transaction_session_timeout = '1h'", "SHOW idle_in_transaction_session_timeout", "1min", time.Minute},
		}
		if b.dialect == dialect.MySQL {
			limits = []limit{
				{"SESSION wait_timeout = 5", "SELECT @@SESSION.wait_timeout", "5", 5 * time.Second},
				{"SESSION wait_timeout = 3600", "SELECT @@SESSION.wait_timeout", "60", time.Minute},
			}
			if s.isMariaDB() {
				limits = append(limits,
					limit{"SESSION idle_transaction_timeout = 4", "SELECT @@SESSION.wait_timeout", "4", 4 * time.Second},
					limit{"SESSION idle_write_transaction_timeout = 3", "SELECT @@SESSION.wait_timeout", "3", 3 * time.Second})
			}
		}
		for _, c := range limits {
			s.leftBehind("SET " + c.set)
			var got string
			var left time.Duration
			s.with(s.inTx(func(gc *gin.Context, tx *sql.Tx) error {
				err := tx.QueryRow(c.show).Scan(&got)
				left, _ = idem.CheckOwner(gc)
				gc.String(201, "paid")
				return err
			}))
			s.want(s.pay(driver.NewNonce().String()), paid)
			if got != c.shown || left != c.left {
				t.Errorf("with %s the transaction has %s and CheckOwner() = %v, want %s and %v", c.set, got, left, c.shown, c.left)
			}
		}
	})
}

// Two engines on one pool leave a connection to calls past their transactions. So their handlers, which look
// something up there, do not wait for each other.
func TestJoinedEnginesOnOnePoolShareItsConnections(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		one := startService(t, b, serviceParts{pool: 4})
		two := startService(t, b, serviceParts{pool: 4, pools: &one.pools})
		const payments = 30
		var next, unanswered atomic.Int64
		unanswered.Store(payments)
		for _, s := range []*service{one, two} {
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				if err := s.insert(c, tx); err != nil {
					return err
				}
				s.eventually("as many transactions are open as may be", func() bool {
					return one.pools.write.Stats().InUse >= 3 || unanswered.Load() < 3
				})
				var n int
				err := one.pools.write.QueryRow("SELECT count(*) FROM payments").Scan(&n)
				c.String(201, "paid")
				return err
			}))
		}
		var clients sync.WaitGroup
		answered := make(chan struct{})
		for range 6 {
			clients.Go(func() {
				for n := next.Add(1); n <= payments; n = next.Add(1) {
					s := []*service{one, two}[n%2]
					s.want(s.pay(fmt.Sprintf("key-%d", n)), paid)
					unanswered.Add(-1)
				}
			})
		}
		go func() { clients.Wait(); close(answered) }()
		select {
		case <-answered:
		case <-time.After(patience):
			t.Fatalf("handlers of two engines wait for each other's connections: %d of %d are in use", one.pools.write.Stats().InUse, 4)
		}
		one.wantPayments(payments)
	})
}
