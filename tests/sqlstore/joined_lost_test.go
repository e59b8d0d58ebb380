package sqlstore_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// A loss makes MySQL or MariaDB end a whole transaction because of an error in one of its statements.
type loss struct {
	name   string
	number uint64
	lose   func(s *service, tx *sql.Tx) error
}

var losses = []loss{
	{"deadlock", 1213, deadlock},
	{"snapshot conflict", 1020, snapshotConflict},
	{"lock time-out", 1205, lockTimeout},
}

// deadlock has two transactions wait for each other. The other one has changed more, so the server
// chooses ours as the victim.
func deadlock(s *service, tx *sql.Tx) error {
	other, err := s.pools.read.Begin()
	if err != nil {
		return err
	}
	defer other.Rollback()
	if _, err := tx.Exec("UPDATE accounts SET n = n + 1 WHERE id = 1"); err != nil {
		return err
	}
	if _, err := other.Exec("UPDATE accounts SET n = n + 1 WHERE id > 1"); err != nil {
		return err
	}
	var cycle sync.WaitGroup
	defer cycle.Wait()
	cycle.Go(func() { _, _ = other.Exec("UPDATE accounts SET n = n + 1 WHERE id = 1") })
	_, err = tx.Exec("UPDATE accounts SET n = n + 1 WHERE id = 2")
	return err
}

// snapshotConflict writes a row that has changed since the transaction has first read.
func snapshotConflict(s *service, tx *sql.Tx) error {
	if _, err := tx.Exec("SET SESSION innodb_snapshot_isolation = ON"); err != nil {
		return err
	}
	var n int
	if err := tx.QueryRow("SELECT n FROM accounts WHERE id = 1").Scan(&n); err != nil {
		return err
	}
	if _, err := s.pools.read.Exec("UPDATE accounts SET n = n + 1 WHERE id = 1"); err != nil {
		return err
	}
	_, err := tx.Exec("UPDATE accounts SET n = n + 1 WHERE id = 1")
	return err
}

// lockTimeout waits for a row until the server gives up.
func lockTimeout(s *service, tx *sql.Tx) error {
	other, err := s.pools.read.Begin()
	if err != nil {
		return err
	}
	defer other.Rollback()
	if _, err := other.Exec("UPDATE accounts SET n = n + 1 WHERE id = 1"); err != nil {
		return err
	}
	if _, err := tx.Exec("SET SESSION innodb_lock_wait_timeout = 0"); err != nil { // MySQL waits for 1 s at least
		return err
	}
	_, err = tx.Exec("UPDATE accounts SET n = n + 1 WHERE id = 1")
	return err
}

// onLosses runs a test for each loss on MariaDB and MySQL. There the lock time-out ends the transaction,
// if the server can be set so.
func onLosses(t *testing.T, p serviceParts, f func(s *service, l loss)) {
	t.Helper()
	p.joined = append(p.joined, sqlstore.WithIsolation(sql.LevelRepeatableRead))
	onMySQLs(t, func(t *testing.T, b backend) {
		start, named := testserver.StartMariaDB, testserver.EnvMariaDB
		if b.name == "MySQL" {
			start, named = testserver.StartMySQL, testserver.EnvMySQL
		}
		if os.Getenv(named) == "" {
			own := start(t, "--innodb-rollback-on-timeout=ON", "--innodb-flush-method=nosync").URL()
			fresh := b
			b.fresh = func(tb testing.TB) pools {
				p := freshMySQL(tb, own)
				if fresh.name == compounding.name {
					p = p.compound(tb)
				}
				return p
			}
		}
		for _, l := range losses {
			t.Run(l.name, func(t *testing.T) {
				s := startService(t, b, p)
				if l.number == 1020 && !s.isMariaDB() {
					return // MySQL has no such setting
				}
				mustExec(t, s.pools.write, "CREATE TABLE accounts (id INT PRIMARY KEY, n INT NOT NULL)")
				for id := range 20 {
					mustExec(t, s.pools.write, "INSERT INTO accounts VALUES (?, 0)", id)
				}
				mustExec(t, s.pools.write, "CREATE TABLE other (x INT)")
				mustExec(t, s.pools.write, "CREATE PROCEDURE commits() COMMIT")
				f(s, l)
			})
		}
	})
}

// suffer loses the transaction and wants the error of the server.
func (l loss) suffer(s *service, tx *sql.Tx) error {
	err := l.lose(s, tx)
	if sqldialect.MySQLNumber(err) != l.number {
		s.Errorf("%s = %v, want error %d", l.name, err, l.number)
	}
	return err
}

// The server has ended the transaction, and the handler does not notice. It pays, does what commits
// or may commit, and answers in any way. No retry pays a second time.
func TestJoinedPaymentAfterALostTransactionIsNeverMadeTwice(t *testing.T) {
	t.Parallel()
	statements := func(list ...string) func(tx *sql.Tx) {
		return func(tx *sql.Tx) {
			for _, statement := range list {
				_, _ = tx.Exec(statement) // swallowed
			}
		}
	}
	ends := map[string]func(tx *sql.Tx){
		"no payment":      func(*sql.Tx) {},
		"sql.Tx.Commit":   func(tx *sql.Tx) { _ = tx.Commit() },
		"sql.Tx.Rollback": func(tx *sql.Tx) { _ = tx.Rollback() },
		"COMMIT; rows are left open": func(tx *sql.Tx) {
			_, _ = tx.Exec("COMMIT")
			_, _ = tx.Query("SELECT id FROM accounts") //nolint:rowserrcheck,sqlclosecheck // that is the misuse
		},
	}
	for _, list := range [][]string{
		{}, {"COMMIT"}, {"ROLLBACK"}, {"BEGIN"}, {"COMMIT AND CHAIN"}, {"ROLLBACK AND CHAIN"}, {"ROLLBACK", "BEGIN"}, {"COMMIT", "BEGIN"},
		{"START TRANSACTION READ ONLY"}, {"START TRANSACTION READ WRITE"}, {"SAVEPOINT a", "COMMIT"},
		{"COMMIT", "INSERT INTO payments VALUES ('later', 1)"},
		{"CALL commits()"}, {"SET autocommit = 1"}, {"SET SESSION TRANSACTION READ WRITE", "COMMIT"},
		{"ANALYZE TABLE payments"}, {"OPTIMIZE TABLE other"}, {"CHECK TABLE other"}, {"FLUSH TABLES other"},
		{"LOCK TABLES payments WRITE", "UNLOCK TABLES"}, {"LOCK TABLES payments READ"},
		{"CREATE TABLE notes (x INT)"}, {"CREATE TABLE other (x INT)"}, {"DROP TABLE IF EXISTS nothing"}, {"TRUNCATE TABLE other"},
		{"ALTER TABLE other ADD COLUMN y INT"}, {"RENAME TABLE other TO others"}, {"CREATE OR REPLACE VIEW v AS SELECT 1"},
		{"CREATE TEMPORARY TABLE temp (x INT)"}, {"DROP PROCEDURE nothing"}, {"XA START 'x'"},
	} {
		ends[strings.Join(list, "; ")] = statements(list...)
	}
	onLosses(t, serviceParts{}, func(s *service, l loss) {
		runs := 0
		statuses := []int{201, 402, 500}
		for name, end := range ends {
			if l.number == 1205 && !s.isMariaDB() { // it takes a second
				statuses = []int{[]int{201, 402, 500}[runs%3]}
			}
			for _, status := range statuses {
				runs++
				key, ran := fmt.Sprint("key-", runs), false
				s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
					ran = true
					_ = l.suffer(s, tx)
					if name != "no payment" {
						_ = s.insert(c, tx)
					}
					end(tx)
					c.String(status, "done")
					return nil
				}))
				first := s.pay(key)
				s.with(s.paying(http.StatusCreated))
				again := s.pay(key)
				if n := s.paidTo(key); n > 1 || !ran {
					s.Errorf("%q and %d: the client was told %v and then %v, and the ledger has %d payments", name, status, first, again, n)
				}
				if (name == "" || name == "no payment") && status == http.StatusCreated && (l.number != 1205 || s.rollsBackOnTimeout() == 1) {
					s.want(first, refused(409, idem.CodeOutcomeUnknown)) // it cannot be told what was committed
					s.wantState(key, driver.StateUnknown)
				}
			}
		}
		s.wantCleanPool()
	})
}

// The handler pays and commits after the loss, and hides that from the middleware by losing the next
// transaction too. On a strict connection it sends nothing after the first loss.
func TestJoinedPaymentThatIsHiddenByASecondLossIsNotMadeTwice(t *testing.T) {
	t.Parallel()
	hidden := func(s *service, l loss, statements ...string) {
		key := driver.NewNonce().String()
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			_ = l.suffer(s, tx)
			_ = s.insert(c, tx)
			for _, statement := range statements {
				_, _ = tx.Exec(statement) // swallowed
			}
			_ = l.lose(s, tx)
			c.String(500, "sorry")
			return nil
		}))
		first := s.pay(key)
		s.with(s.paying(http.StatusCreated))
		again := s.pay(key)
		if n := s.paidTo(key); n > 1 {
			s.Errorf("%q: the client was told %v and then %v, and the ledger has %d payments", statements, first, again, n)
		}
	}
	chained := []string{"SET SESSION completion_type = 1", "COMMIT"}
	for name, p := range map[string]serviceParts{"plain": {}, "strict": strictly(t, serviceParts{})} {
		t.Run(name, func(t *testing.T) {
			onLosses(t, p, func(s *service, l loss) {
				if l.number == 1205 {
					return
				}
				hidden(s, l, "COMMIT")
				hidden(s, l, chained...)
				if name == "strict" { // the documentation names the others
					hidden(s, l, "COMMIT AND CHAIN")
					hidden(s, l, "SET autocommit = 1", "SET autocommit = 0")
					hidden(s, l, "COMMIT", "START TRANSACTION READ WRITE")
				}
			})
		})
	}
}

// A handler that reports the loss, or fails at once, has no outcome in doubt.
func TestJoinedLossThatTheHandlerNoticesRollsBack(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"the client repeats": false, "the engine repeats": true} {
		t.Run(name, func(t *testing.T) {
			var p serviceParts
			if again {
				p.engine = []idem.Option{idem.WithConflictRetries(1)}
			}
			onLosses(t, p, func(s *service, l loss) {
				runs := 0
				s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
					if runs++; runs > 1 {
						s.paying(http.StatusCreated)(c)
						return nil
					}
					if err := s.insert(c, tx); err != nil {
						return err
					}
					err := l.suffer(s, tx)
					if again {
						_ = c.Error(err)
					}
					return err
				}))
				if !again || l.number == 1205 {
					s.want(s.pay("k1"), answer{status: 500, body: "sorry"})
				}
				s.want(s.pay("k1"), paid)
				s.want(s.pay("k1"), paidBefore)
				s.wantPayments(1)
				s.wantMisuse(nil)
				s.wantCleanPool()
			})
		})
	}
}

// rollsBackOnTimeout is 1 if a lock time-out ends the whole transaction.
func (s *service) rollsBackOnTimeout() int {
	s.Helper()
	return get[int](s, s.pools.read, "SELECT @@innodb_rollback_on_timeout")
}

// A handler ignores a lock time-out and pays without its debit. The server can be set so that this is
// noticed, and otherwise the log says at the start that it is not.
func TestJoinedIgnoredLockTimeoutIsNoticedOrWarnedOf(t *testing.T) {
	t.Parallel()
	ignoring := func(s *service, l loss) gin.HandlerFunc {
		return s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			_ = l.suffer(s, tx)
			err := s.insert(c, tx)
			c.String(201, "paid")
			return err
		})
	}
	warnsOf := func(s *service) bool {
		var log bytes.Buffer
		store := s.backend.store(s, s.pools, sqlstore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		must(s, errOf(store.Joined()))
		return strings.Contains(log.String(), "innodb_rollback_on_timeout is off")
	}
	onLosses(t, serviceParts{}, func(s *service, l loss) {
		if l.number != 1205 {
			return
		}
		if off := s.rollsBackOnTimeout() == 0; warnsOf(s) != off {
			s.Errorf("the log warns %t, want %t", !off, off)
		} else if off {
			return
		}
		s.with(ignoring(s, l))
		s.want(s.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
		s.wantMisuse(driver.ErrEscaped)
		s.wantPayments(0)
	})
	onMariaDB(t, serviceParts{}, func(s *service) {
		if off := s.rollsBackOnTimeout() == 0 && s.backend.name != compounding.name; warnsOf(s) != off {
			s.Errorf("the log warns %t, want %t", !off, off)
		}
	})
}
