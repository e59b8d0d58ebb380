package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// A handler of MySQL or MariaDB that has sent ROLLBACK cannot pay any more.
func TestJoinedHandlerCannotPayAfterItsOwnRollback(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(tx *sql.Tx){
		"sql.Tx.Commit": func(tx *sql.Tx) { _ = tx.Commit() },
		"COMMIT":        func(tx *sql.Tx) { _, _ = tx.Exec("COMMIT") },
		"BEGIN":         func(tx *sql.Tx) { _, _ = tx.Exec("BEGIN") },
		"DDL":           func(tx *sql.Tx) { _, _ = tx.Exec("CREATE TABLE notes (x INT)") },
	} {
		t.Run(name, func(t *testing.T) {
			onMariaDB(t, serviceParts{}, func(s *service) {
				s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
					_, err := tx.Exec("ROLLBACK")
					if s.insert(c, tx) == nil {
						t.Error("the handler could pay")
					}
					end(tx)
					c.String(201, "paid")
					return err
				}))
				s.want(s.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
				s.wantMisuse(driver.ErrEscaped)
				s.want(s.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
				s.wantPayments(0)
				s.wantCleanPool()
			})
		})
	}
}

// 2. An error in a statement can end the transaction on SQLite.
func TestJoinedWritesAfterALostTransactionAreRefusedOnSQLite(t *testing.T) {
	t.Parallel()
	var cancel context.CancelFunc
	cancels := inSQLite(t, func() { cancel() })
	for name, lose := range map[string]func(tx *sql.Tx) error{
		"INSERT OR ROLLBACK": func(tx *sql.Tx) error {
			if _, err := tx.Exec("INSERT INTO taken VALUES (1)"); err != nil {
				return err
			}
			_, err := tx.Exec("INSERT OR ROLLBACK INTO taken VALUES (1)")
			return err
		},
		"ROLLBACK":        func(tx *sql.Tx) error { _, err := tx.Exec("ROLLBACK"); return err },
		"ROLLBACK; BEGIN": func(tx *sql.Tx) error { _, err := tx.Exec("ROLLBACK; BEGIN"); return err },
		"a cancelled statement": func(tx *sql.Tx) error {
			var ctx context.Context
			ctx, cancel = context.WithCancel(context.Background())
			defer cancel()
			_, err := tx.ExecContext(ctx, "INSERT INTO taken WITH RECURSIVE r(x) AS (SELECT 10 UNION ALL SELECT x + 1 FROM r)"+
				" SELECT CASE x WHEN 100 THEN "+cancels+" ELSE x END FROM r")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startOn(t, dialect.SQLite, serviceParts{})
			mustExec(t, s.pools.write, "CREATE TABLE taken (x INTEGER PRIMARY KEY)")
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				_ = lose(tx)
				err := s.insert(c, tx) // swallowed
				if _, commitErr := tx.Exec("COMMIT"); err == nil && commitErr == nil {
					t.Error("the handler's own COMMIT was let through")
				}
				c.String(201, "paid")
				return nil
			}))
			s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
			s.wantMisuse(driver.ErrSwallowed)
			s.wantPayments(0)
			s.wantOnePayment("k1")
		})
	}
}

// 4. A handler commits by itself.
func TestJoinedCommitByTheHandlerLeavesNoPaymentWithoutARecord(t *testing.T) {
	t.Parallel()
	type end struct {
		answer answer
		state  driver.State
		told   error
	}
	unknown := end{refused(409, idem.CodeOutcomeUnknown), driver.StateUnknown, driver.ErrEscaped}
	undone := end{refused(503, idem.CodeUnavailable), driver.StateNone, driver.ErrSwallowed}
	for name, tt := range map[string]struct {
		commit                    func(tx *sql.Tx) error
		postgres, mariadb, sqlite end
	}{
		"sql.Tx.Commit":   {func(tx *sql.Tx) error { return tx.Commit() }, undone, unknown, undone},
		"sql.Tx.Rollback": {func(tx *sql.Tx) error { return tx.Rollback() }, undone, unknown, undone},
		// SQLite refuses it, and the transaction goes on.
		"COMMIT":   {func(tx *sql.Tx) error { _, err := tx.Exec("COMMIT"); return err }, unknown, unknown, end{paid, driver.StateCompleted, nil}},
		"ROLLBACK": {func(tx *sql.Tx) error { _, err := tx.Exec("ROLLBACK"); return err }, unknown, unknown, undone},
	} {
		t.Run(name, func(t *testing.T) {
			onEachService(t, serviceParts{}, func(s *service) {
				want := map[string]end{"PostgreSQL": tt.postgres, "PgBouncer": tt.postgres, pipelined.name: tt.postgres, "MariaDB": tt.mariadb, "MySQL": tt.mariadb, compounding.name: tt.mariadb, "SQLite": tt.sqlite}[s.backend.name]
				s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
					err := s.insert(c, tx)
					_ = tt.commit(tx)
					c.String(201, "paid")
					return err
				}))
				s.want(s.pay("k1"), want.answer)
				s.wantState("k1", want.state)
				s.wantNothingOpen("after " + name)
				switch want.state {
				case driver.StateNone:
					s.wantMisuse(want.told)
					s.wantOnePayment("k1")
				case driver.StateUnknown:
					s.wantMisuse(want.told)
					s.want(s.pay("k1"), want.answer)
				default:
					s.want(s.pay("k1"), paidBefore)
					s.wantPayments(1)
				}
			})
		})
	}
}

// 4. Even without its guard a committed record is not of a later transaction.
func TestJoinedCommitWithoutForeignKeysIsDetected(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"success": 201, "refusal": 402, "failure": 500} {
		t.Run(name, func(t *testing.T) {
			s := startOn(t, dialect.PostgreSQL, serviceParts{})
			s.with(s.sending(status, "pay", "SET LOCAL session_replication_role = replica", "COMMIT", "BEGIN"))
			s.want(s.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
			s.wantMisuse(driver.ErrEscaped)
			s.wantState("k1", driver.StateUnknown)
		})
	}
}

// 4. Statements that commit on MySQL, after which the handler fails.
func TestJoinedDDLByTheHandlerIsUnknownOnMariaDB(t *testing.T) {
	t.Parallel()
	for _, statements := range [][]string{
		{"CREATE TABLE notes (x INT)"}, {"ANALYZE TABLE payments"}, {"BEGIN"}, {"SET autocommit = 1"},
		{"LOCK TABLES idem_records READ"}, {"COMMIT RELEASE"}, {"SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "COMMIT"}, // against its own settlement
	} {
		for _, status := range []int{201, 402, 500} {
			t.Run(strings.Join(statements, "; ")+" "+http.StatusText(status), func(t *testing.T) {
				onMariaDB(t, serviceParts{}, func(s *service) {
					s.with(s.sending(status, append([]string{"pay"}, statements...)...))
					s.want(s.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
					s.wantMisuse(driver.ErrEscaped)
					s.wantState("k1", driver.StateUnknown)
					s.want(s.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
					s.wantPayments(1)
					s.wantCleanPool()
				})
			})
		}
	}
}

// 4. On PostgreSQL and SQLite DDL is a part of the transaction.
func TestJoinedDDLCommitsWithThePayment(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		if s.backend.dialect == dialect.MySQL {
			return
		}
		s.with(s.sending(201, "pay", "CREATE TABLE notes (x INT)"))
		s.want(s.pay("k1"), paid)
		s.wantPayments(1)
	})
}

// 4. The process dies after DDL has committed the pending record.
func TestJoinedPendingRecordThatWasCommittedIsUnknown(t *testing.T) {
	t.Parallel()
	onMariaDB(t, serviceParts{}, func(s *service) {
		s.with(s.sending(201, "pay", "CREATE TABLE notes (x INT)"))
		finish := s.started("k1")
		other := startService(s.T, s.backend, serviceParts{pools: &s.pools})
		other.want(other.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
		other.wantState("k1", driver.StateUnknown)
		s.want(finish(), refused(409, idem.CodeOutcomeUnknown))
		s.wantPayments(1)
	})
}

// 5. A handler works with savepoints of any name.
func TestJoinedSavepointsOfTheHandlerDoNotSurviveARollback(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		for _, status := range []int{402, 201} {
			s.with(s.sending(status, "SAVEPOINT idem", "pay", "SAVEPOINT idem", "pay", "ROLLBACK TO SAVEPOINT idem", "RELEASE SAVEPOINT idem"))
			s.want(s.pay(fmt.Sprint(status)), answer{status: status, body: "paid"})
			if status == 402 {
				s.wantPayments(0)
			}
		}
		s.wantPayments(1)
	})
}

// The guard is a deferred constraint too, so a handler names those that it wants checked.
func TestJoinedHandlerChecksItsOwnConstraintsAndNotAll(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.PostgreSQL, serviceParts{})
	mustExec(t, s.pools.write, "ALTER TABLE payments ADD CONSTRAINT payments_op_once UNIQUE (op) DEFERRABLE INITIALLY DEFERRED")
	s.with(s.sending(201, "pay", "SET CONSTRAINTS ALL IMMEDIATE"))
	s.want(s.pay("k1"), answer{status: 500, body: "sorry"})
	s.wantPayments(0)
	s.with(s.sending(201, "pay", "SET CONSTRAINTS payments_op_once IMMEDIATE"))
	s.want(s.pay("k1"), paid)
	s.want(s.pay("k1"), paidBefore)
	s.wantPayments(1)
}
