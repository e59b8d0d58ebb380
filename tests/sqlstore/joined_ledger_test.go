package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// With write-ahead logging SQLite commits attached files one after the other. A crash in between would
// keep the record and lose the payment.
func TestAttachedFileIsRefusedInJoinedMode(t *testing.T) {
	t.Parallel()
	attach := func(tb testing.TB) string {
		return "ATTACH '" + filepath.Join(tb.TempDir(), "ledger.db") + "' AS ledger"
	}
	t.Run("before Joined", func(t *testing.T) {
		b := onSQLite
		p := b.migrated(t)
		mustExec(t, p.write, attach(t))
		if _, err := b.store(t, p, sqlstore.WithSoleProcess()).Joined(); !says(err, errSetting) {
			t.Errorf("Joined() with an attached file = %v, want %v", err, errSetting)
		}
	})
	t.Run("between two payments", func(t *testing.T) {
		s := startOn(t, dialect.SQLite, serviceParts{})
		s.want(s.pay("k1"), paid)
		mustExec(t, s.pools.write, attach(t))
		s.want(s.pay("k2"), refused(503, idem.CodeUnavailable))
		if runs := s.runs; runs != 1 {
			t.Errorf("the handler ran %d times, want 1", runs)
		}
		s.want(s.pay("k2"), paid) // the connection with the file was closed
		s.wantPayments(2)
	})
	t.Run("by the handler", func(t *testing.T) {
		s := startOn(t, dialect.SQLite, serviceParts{})
		s.with(s.sending(201, attach(t), "CREATE TABLE ledger.payments (op TEXT, amount INT)", "INSERT INTO ledger.payments VALUES ('k1', 100)"))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		s.wantOnePayment("k1")
	})
}

// A table without transactions keeps what a rolled-back attempt wrote. So no retry writes it again, and
// the developer is told.
func TestJoinedTableWithoutTransactionsIsNoticed(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"MyISAM", "Aria", "MEMORY"} {
		t.Run(engine, func(t *testing.T) {
			onMariaDB(t, serviceParts{}, func(s *service) {
				if engine == "Aria" && !s.isMariaDB() {
					return
				}
				mustExec(s, s.pools.write, "ALTER TABLE payments ENGINE = "+engine)
				s.keepsItsRows("a-failure", func(c *gin.Context, _ *sql.Tx) { c.String(http.StatusInternalServerError, "sorry") })
				s.wantCleanPool()
			})
		})
	}
	t.Run("strict", func(t *testing.T) {
		onMariaDB(t, strictly(t, serviceParts{}), func(s *service) {
			mustExec(s, s.pools.write, "ALTER TABLE payments ENGINE = MyISAM")
			s.keepsItsRows("an-ignored-failure", func(c *gin.Context, tx *sql.Tx) {
				_, _ = tx.Exec("DELETE FROM nowhere")
				c.String(http.StatusCreated, "paid")
			})
		})
	})
}

// keepsItsRows pays, and rolls back because of what the handler does then.
func (s *service) keepsItsRows(key string, then func(c *gin.Context, tx *sql.Tx)) {
	s.Helper()
	s.events = nil
	mustExec(s, s.pools.write, "DELETE FROM payments")
	var insert error
	s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
		insert = s.insert(c, tx)
		then(c, tx)
		return nil
	}))
	a := s.pay(key)
	if sqldialect.MySQLNumber(insert) == 1785 { // MySQL refuses it by itself, if it keeps global IDs consistent
		s.wantPayments(0)
		return
	}
	s.want(a, refused(409, idem.CodeOutcomeUnknown))
	s.wantMisuse(driver.ErrEscaped)
	s.with(s.paying(http.StatusCreated))
	s.pay(key)
	s.wantPayments(1)
}

// A backup locks the tables against writes. That is no other attempt of the key.
func TestJoinedReadLockOfABackupIsUnavailable(t *testing.T) {
	t.Parallel()
	own := testserver.StartMariaDB(t, "--innodb-flush-method=nosync").URL()
	plain := onMySQL("MariaDB", own)
	for name, lock := range map[string]string{
		"all": "FLUSH TABLES WITH READ LOCK", "ours": "LOCK TABLES idem_records READ, idem_schema READ, payments READ", "all, compound": "FLUSH TABLES WITH READ LOCK",
		"ours, compound": "LOCK TABLES idem_records READ, idem_schema READ, payments READ",
	} {
		t.Run(name, func(t *testing.T) {
			b := plain
			if strings.Contains(name, "compound") {
				b.fresh = func(tb testing.TB) pools { return plain.fresh(tb).compound(tb) }
			}
			s := startService(t, b, serviceParts{engine: []idem.Option{idem.WithLockTimeout(idleMargin / 20), idem.WithStoreTimeout(idleMargin / 20)}})
			backup, err := s.pools.read.Conn(context.Background())
			must(t, err)
			defer backup.Close()
			must(t, errOf(backup.ExecContext(context.Background(), lock)))
			s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
			must(t, errOf(backup.ExecContext(context.Background(), "UNLOCK TABLES")))
			s.wantOnePayment("k1")
		})
	}
}

// A server or a session that would not commit a record, or would refuse some statements later, is refused at the start.
func TestSettingsOfMySQLThatAreRefused(t *testing.T) {
	t.Parallel()
	binlog := testserver.StartMariaDB(t, "--innodb-flush-method=nosync", "--log-bin=binlog", "--binlog-format=STATEMENT").URL()
	for setting, server := range map[string]string{"": binlog, "autocommit=0": "", "completion_type=1": "", "sql_mode=%27EMPTY_STRING_IS_NULL%27": ""} {
		if server == "" {
			server = testserver.SharedMariaDB(t)
		}
		p := onMySQL("MariaDB", server).migrated(t)
		if store, err := sqlstore.New(t.Context(), p.with(t, setting), dialect.MySQL, quiet()); !says(err, errSetting) {
			t.Errorf("New() with %q = %v, %v, want %v", setting, store, err, errSetting)
		}
	}
}

// What keeps the payment from its COMMIT is named, and a retry runs: the connection is killed after the last statement of
// the handler, or rows that it has left open keep the driver from sending anything.
func TestJoinedReasonOfARollbackIsNamedOnMySQL(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		last   func(s *service, tx *sql.Tx) error
		reason error
	}{
		"a lost connection": {func(s *service, tx *sql.Tx) error {
			var id int
			err := tx.QueryRow("SELECT CONNECTION_ID()").Scan(&id)
			mustExec(s, s.pools.read, fmt.Sprint("KILL ", id))
			return err
		}, errors.New(errConnectionLost)},
		"open rows": {func(_ *service, tx *sql.Tx) error {
			_, err := tx.Query("SELECT op FROM payments UNION ALL SELECT 'x'") //nolint:rowserrcheck,sqlclosecheck // that is the misuse
			return err
		}, sqlstore.ErrRowsOpen},
	} {
		t.Run(name, func(t *testing.T) {
			onMariaDB(t, serviceParts{}, func(s *service) {
				s.with(s.inTx(func(gc *gin.Context, tx *sql.Tx) error {
					err := errors.Join(s.insert(gc, tx), c.last(s, tx))
					gc.String(http.StatusCreated, "paid")
					return err
				}))
				s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
				reason := c.reason
				if s.backend.name == compounding.name && says(reason, errConnectionLost) { // it goes with COMMIT there
					reason = errors.New(errConnectionLostAtEnd)
				}
				s.wantTold(telemetry.EventReleased, reason)
				s.wantMisuse(nil)
				s.wantOnePayment("k1")
			})
		})
	}
}
