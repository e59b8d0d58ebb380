package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// strictly opens the pool of a service with [Strict].
func strictly(tb testing.TB, p serviceParts) serviceParts {
	tb.Helper()
	p.rewrite = func(old *pools) {
		if driverOf(old.dsn) == "sqlite" {
			_ = old.write.Close()
		}
		db, err := sqlstore.OpenStrict(driverOf(old.dsn), old.dsn)
		if err != nil {
			tb.Error(err)
			return
		}
		tb.Cleanup(func() { _ = db.Close() })
		db.SetMaxOpenConns(max(old.write.Stats().MaxOpenConnections, 1))
		db.SetMaxIdleConns(8)
		old.write = db
	}
	return p
}

// failing are statements that fail in different ways, by dialect where it matters.
func failing(d dialect.Dialect) map[string]func(ctx context.Context, tx *sql.Tx) error {
	late := "SELECT 1 / (3 - x) FROM generate_series(1, 5) x" // the first rows are there
	switch d {
	case dialect.MySQL:
		late = "SELECT EXP(x) FROM (SELECT 1 AS x UNION ALL SELECT 2 UNION ALL SELECT 10000) t" // Close reads the rest too
	case dialect.SQLite:
		late = "WITH t(x) AS (VALUES (1), (2), (-9223372036854775808)) SELECT abs(x) FROM t"
	}
	ways := map[string]func(ctx context.Context, tx *sql.Tx) error{
		"table": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "DELETE FROM nowhere")
			return err
		},
		"query": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.QueryContext(ctx, "SELECT x FROM nowhere") //nolint:rowserrcheck,sqlclosecheck // it has no rows
			return err
		},
		"prepare": func(ctx context.Context, tx *sql.Tx) error {
			stmt, err := tx.PrepareContext(ctx, "DELETE FROM nowhere")
			if err == nil { // SQLite prepares it later
				defer stmt.Close()
				_, err = stmt.ExecContext(ctx)
			}
			return err
		},
		"unique": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO taken VALUES (1)")
			return err
		},
		"prepared": func(ctx context.Context, tx *sql.Tx) error {
			stmt, err := tx.PrepareContext(ctx, "INSERT INTO taken VALUES (1)")
			if err != nil {
				return nil // it has to fail later
			}
			defer stmt.Close()
			_, err = stmt.ExecContext(ctx)
			return err
		},
		"argument": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO taken VALUES (?)", struct{ x chan int }{})
			return err
		},
		"rows": func(ctx context.Context, tx *sql.Tx) error {
			rows, err := tx.QueryContext(ctx, late)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
			}
			return rows.Err()
		},
	}
	if d == dialect.MySQL {
		ways["closed"] = func(ctx context.Context, tx *sql.Tx) error {
			rows, err := tx.QueryContext(ctx, late) //nolint:rowserrcheck // Close is the one that tells
			if err != nil || !rows.Next() {
				return errors.New("the first row is not there") // it has to fail later
			}
			return rows.Close() //nolint:sqlclosecheck // its error is the point
		}
	}
	return ways
}

// A handler goes on after any failure, also with what it has prepared before. Its payment does not commit without what has
// failed, and each error tells of the first one.
func TestStrictPaymentDoesNotCommitWithoutAStatementThatHasFailed(t *testing.T) {
	t.Parallel()
	onEachService(t, strictly(t, serviceParts{}), func(s *service) {
		mustExec(s, s.pools.write, "CREATE TABLE taken (x INT PRIMARY KEY)")
		mustExec(s, s.pools.write, "INSERT INTO taken VALUES (1)")
		for name, fail := range failing(s.backend.dialect) {
			s.events = nil
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				prepared, err := tx.PrepareContext(c.Request.Context(), "INSERT INTO payments (op, amount) VALUES ('prepared', 100)")
				if err != nil {
					return err
				}
				defer prepared.Close()
				if err := fail(c.Request.Context(), tx); err == nil {
					s.Errorf("%s: <nil>, want an error", name)
				}
				_, back := tx.Exec("ROLLBACK TO SAVEPOINT missing")
				if back == nil {
					s.Errorf("%s: back to no savepoint = <nil>, want an error", name)
				}
				for how, err := range map[string]error{
					"Exec": s.insert(c, tx), "prepared Exec": errOf(prepared.Exec()), "prepared Query": errOf(prepared.Query()),
				} {
					if !errors.Is(err, sqlstore.ErrStatementFailed) || strings.Contains(err.Error(), "missing") {
						s.Errorf("%s: the payment by %s = %v, want %v because of the first error", name, how, err, sqlstore.ErrStatementFailed)
					}
				}
				c.String(201, "paid")
				return nil
			}))
			s.want(s.pay(name), refused(503, idem.CodeUnavailable))
			s.wantMisuse(driver.ErrSwallowed)
			s.wantPayments(0)
			s.with(s.paying(402))
			s.want(s.pay(name), answer{status: 402, body: "paid"})
		}
		s.wantNothingOpen("after the failures")
		if s.backend.dialect == dialect.MySQL {
			s.wantCleanPool()
		}
	})
}

// The server undoes one statement after a lock time-out. That was a payment without its debit.
func TestStrictLockTimeoutIsNotIgnored(t *testing.T) {
	t.Parallel()
	onMariaDB(t, strictly(t, serviceParts{}), func(s *service) {
		mustExec(s, s.pools.write, "CREATE TABLE accounts (id INT PRIMARY KEY, n INT NOT NULL)")
		mustExec(s, s.pools.write, "INSERT INTO accounts VALUES (1, 100)")
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			if err := lockTimeout(s, tx); sqldialect.MySQLNumber(err) != 1205 {
				s.Errorf("the debit = %v, want a lock time-out", err)
			}
			_ = s.insert(c, tx)
			c.String(201, "paid")
			return nil
		}))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		s.wantMisuse(driver.ErrSwallowed)
		s.wantPayments(0)
		s.wantOnePayment("k1")
		s.wantCleanPool()
	})
}

// The server has ended the transaction, and nothing was sent after that. So nothing is in doubt.
func TestStrictLossIsARollback(t *testing.T) {
	t.Parallel()
	onLosses(t, strictly(t, serviceParts{}), func(s *service, l loss) {
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			_ = l.suffer(s, tx)
			if err := s.insert(c, tx); !errors.Is(err, sqlstore.ErrStatementFailed) {
				s.Errorf("the payment after a %s = %v, want %v", l.name, err, sqlstore.ErrStatementFailed)
			}
			c.String(201, "paid")
			return nil
		}))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		s.wantMisuse(driver.ErrSwallowed)
		s.wantPayments(0)
		s.wantOnePayment("k1")
		s.wantCleanPool()
	})
}

// A handler that expects an error goes back to a savepoint.
func TestStrictGoesOnFromASavepoint(t *testing.T) {
	t.Parallel()
	onEachService(t, strictly(t, serviceParts{}), func(s *service) {
		mustExec(s, s.pools.write, "CREATE TABLE taken (x INT PRIMARY KEY)")
		mustExec(s, s.pools.write, "INSERT INTO taken VALUES (1)")
		for key, back := range map[string]string{"k1": "ROLLBACK TO SAVEPOINT a", "k2": " rollback\n to a", "k3": "/* of * the service */ ROLLBACK TO a"} {
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				if _, err := tx.Exec("SAVEPOINT a"); err != nil {
					return err
				}
				if _, err := tx.Exec("INSERT INTO taken VALUES (1)"); err == nil {
					s.Error("a second row with the key was inserted")
				}
				if _, err := tx.Exec(back); err != nil {
					return err
				}
				err := s.insert(c, tx)
				c.String(201, "paid")
				return err
			}))
			s.want(s.pay(key), paid)
		}
		s.wantPayments(3)
	})
}

// Rows of a strict connection tell the same of their columns, and rows that were read to their end are closed.
func TestStrictRowsAreThoseOfTheDriver(t *testing.T) {
	t.Parallel()
	onEachService(t, strictly(t, serviceParts{}), func(s *service) {
		const columns = "CREATE TABLE kinds (a VARCHAR(7) NOT NULL, b DECIMAL(8, 3), c BIGINT, d DOUBLE PRECISION NOT NULL)"
		mustExec(s, s.pools.write, columns)
		mustExec(s, s.pools.write, "INSERT INTO kinds VALUES ('x', 1.5, 2, 3)")
		read := func(q interface {
			QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		}) (string, error) {
			rows, err := q.QueryContext(context.Background(), "SELECT a, b, c, d FROM kinds") //nolint:sqlclosecheck // it is read to its end
			if err != nil {
				return "", err
			}
			types, err := rows.ColumnTypes()
			var told strings.Builder
			for _, of := range types {
				length, hasLength := of.Length()
				nullable, hasNullable := of.Nullable()
				precision, scale, hasDecimal := of.DecimalSize()
				fmt.Fprintln(&told, of.Name(), of.DatabaseTypeName(), of.ScanType(), length, hasLength, nullable, hasNullable, precision, scale, hasDecimal)
			}
			for rows.Next() {
			}
			_, over := rows.ColumnTypes() // they are closed
			return told.String() + fmt.Sprint(over), errors.Join(err, rows.Err())
		}
		plain, err := read(s.pools.read)
		must(s, err)
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			strict, err := read(tx)
			if strict != plain {
				s.Errorf("the columns of a strict connection are\n%s\nand those of another\n%s", strict, plain)
			}
			c.String(201, "paid")
			return err
		}))
		s.want(s.pay("k1"), paid)
	})
}

// A connection that has ended in the pool is replaced before its next user meets that.
func TestStrictConnectionThatHasEndedIsReplaced(t *testing.T) {
	t.Parallel()
	onMariaDB(t, strictly(t, serviceParts{}), func(s *service) {
		id := get[int](s, s.pools.write, "SELECT CONNECTION_ID()")
		mustExec(s, s.pools.read, fmt.Sprint("KILL ", id))
		s.eventually("the connection has ended", func() bool {
			return holds(s.pools.read, fmt.Sprintf("SELECT count(*) = 0 FROM information_schema.processlist WHERE id = %d", id))
		})
		if _, err := s.pools.write.Exec("DELETE FROM payments"); err != nil {
			s.Errorf("a statement after the end of its connection = %v, want <nil>", err)
		}
	})
}

// Only the transactions of joined mode are strict. The same connection is an ordinary one before and after.
func TestStrictLeavesOtherTransactionsAlone(t *testing.T) {
	t.Parallel()
	onEachService(t, strictly(t, serviceParts{pool: 2}), func(s *service) {
		if s.backend.dialect == dialect.PostgreSQL {
			return // the server itself is strict
		}
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			_, _ = tx.Exec("DELETE FROM nowhere")
			c.String(500, "sorry")
			return nil
		}))
		for range 3 {
			s.want(s.pay("k1"), answer{status: 500, body: "sorry"})
			tx, err := s.pools.write.Begin()
			must(s, err)
			_, failed := tx.Exec("DELETE FROM nowhere")
			_, err = tx.Exec("INSERT INTO payments (op, amount) VALUES ('other', 1)")
			if failed == nil || err != nil || tx.Commit() != nil {
				s.Errorf("a statement after one with the error %v = %v, want <nil>", failed, err)
			}
		}
		s.wantPayments(3)
		if n := get[int](s, s.pools.write, "SELECT count(*) FROM payments WHERE op = 'other'"); n != 3 {
			s.Errorf("%d payments of others, want 3", n)
		}
	})
}

// Nothing holds the key of a handler behind a pooler that has sent ROLLBACK. On MySQL and MariaDB it could pay in
// another transaction, and hide that from the middleware. So it may not write on.
func TestStrictHandlerThatHasEndedItsTransactionWritesNothing(t *testing.T) {
	t.Parallel()
	onEachService(t, strictly(t, serviceParts{}), func(s *service) {
		ends := []string{"ROLLBACK", "COMMIT", "/* of the service */ -- its version\nROLLBACK"}
		switch s.backend.dialect {
		case dialect.SQLite:
			return // the commit hook refuses its COMMIT, and what it writes after ROLLBACK
		case dialect.MySQL:
			ends = append(ends, " begin ;", "Start\nTransaction READ WRITE", "COMMIT AND CHAIN", "SET autocommit=1", "SET @@session.autocommit = 1", "SET @x = 'a, b', SESSION autocommit = 1")
		}
		for n, end := range ends {
			for _, status := range []int{201, 500} {
				s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
					_, _ = tx.Exec(end)
					for _, statement := range []string{"SET TRANSACTION READ WRITE", "BEGIN", "INSERT INTO payments VALUES ('more', 1)", "COMMIT", "SET TRANSACTION READ WRITE"} {
						if _, err := tx.Exec(statement); !errors.Is(err, sqlstore.ErrHandlerEnded) {
							s.Errorf("%s after %s = %v, want %v", statement, end, err, sqlstore.ErrHandlerEnded)
						}
					}
					c.String(status, "paid")
					return nil
				}))
				s.want(s.pay(fmt.Sprintf("k-%d-%d", n, status)), refused(409, idem.CodeOutcomeUnknown))
			}
		}
		s.wantPayments(0)
	})
}
