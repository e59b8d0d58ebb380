package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// startCompound starts a service whose transactions begin and end with compound statements.
func startCompound(t *testing.T, p serviceParts) *service {
	t.Helper()
	var compound atomic.Bool
	p.sees = func(st *statement) {
		if strings.HasPrefix(st.text, "BEGIN NOT ATOMIC") {
			compound.Store(true)
		}
	}
	s := startService(t, compounding, p)
	s.want(s.pay("first"), paid) // the connection tells what it can
	if !compound.Load() {
		t.Fatal("the transaction has not begun in a compound statement")
	}
	return s
}

// inSingle has a store send single statements, because it takes the server for one in a mode with other compound statements.
func inSingle(st *statement) {
	st.text = strings.Replace(st.text, "@@sql_mode, @@binlog_format", "'ORACLE', @@binlog_format", 1)
}

// onStrict runs a test with connections of Strict: with compound statements, and with single ones as on MySQL.
func onStrict(t *testing.T, p serviceParts, f func(s *service)) {
	t.Helper()
	for name, sees := range map[string]func(*statement){"compound": nil, "single": inSingle} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := p
			p.sees = sees
			s := startService(t, compounding, p)
			s.want(s.pay("first"), paid)
			f(s)
		})
	}
}

// opening is the statement that begins and takes the key.
var opening = testserver.Contains("START TRANSACTION")

// With compound statements a payment takes as many round trips as its own transaction. A repeat takes one, or two soon after the payment.
func TestJoinedTripsOfStrictConnections(t *testing.T) {
	t.Parallel()
	for _, compound := range []bool{true, false} {
		t.Run(fmt.Sprintf("compound %t", compound), func(t *testing.T) {
			t.Parallel()
			var proxy *testserver.Proxy
			parts := serviceParts{store: []sqlstore.Option{sqlstore.WithExpiry(0)}, rewrite: func(p *pools) {
				throughProxy(t, &proxy)(p)
				cfg := parsedMySQL(t, p.dsn)
				cfg.Addr, cfg.InterpolateParams = proxy.Addr(), true
				p.far = cfg.FormatDSN()
				p.write = open(t, driverOf(p.far), p.far)
			}}
			if !compound {
				parts.sees = inSingle
			}
			s := startService(t, compounding, parts)
			s.want(s.pay("first"), paid)
			counter := proxy.Count("")
			trips := func(what string, want map[bool]int, do func()) {
				t.Helper()
				counter.Reset()
				do()
				if n := counter.Seen().Total(); n != want[compound] {
					t.Errorf("%s takes %d requests, want %d", what, n, want[compound])
				}
			}
			trips("a payment of one statement", map[bool]int{true: 3, false: 10}, func() { s.want(s.pay("k1"), paid) })
			trips("its repeat", map[bool]int{true: 2, false: 2}, func() { s.want(s.pay("k1"), paidBefore) })
			mustExec(t, s.pools.read, "UPDATE idem_records SET settled = settled - 16 * 60 * 1000000")
			trips("a later repeat", map[bool]int{true: 1, false: 1}, func() { s.want(s.pay("k1"), paidBefore) })
			id := idOf("a token")
			s.keep(id, driver.StateIssued)
			trips("the begin with a token, which is read over the other pool", map[bool]int{true: 1, false: 5}, func() {
				begun := s.mustBegin(id, joinedRequest(driver.IssuedToken))
				t.Cleanup(func() { _ = begun.Tx.Rollback(context.Background()) })
			})
		})
	}
}

// The update of the record is the victim of a deadlock. The COMMIT behind it in the same statement does not run in a new
// transaction, and the engine may run the handler again.
func TestJoinedDeadlockInsideTheClosingStatementCommitsNothing(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"the client repeats": false, "the engine repeats": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p serviceParts
			if again {
				p.engine = []idem.Option{idem.WithConflictRetries(1)}
			}
			s := startCompound(t, p)
			mustExec(t, s.pools.write, "CREATE TABLE accounts (id INT PRIMARY KEY, n INT NOT NULL)")
			mustExec(t, s.pools.write, "INSERT INTO accounts SELECT seq, 0 FROM seq_1_to_100")
			mustExec(t, s.pools.write, "CREATE TRIGGER locks BEFORE UPDATE ON idem_records FOR EACH ROW UPDATE accounts SET n = n + 1 WHERE id = 2")
			other, err := s.pools.read.Begin()
			must(t, err)
			defer other.Rollback()
			var cycle sync.WaitGroup
			defer cycle.Wait()
			runs := 0
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				if runs++; runs == 1 {
					must(t, errOf(tx.Exec("UPDATE accounts SET n = n + 1 WHERE id = 1")))
					must(t, errOf(other.Exec("UPDATE accounts SET n = n + 1 WHERE id > 1"))) // it has changed more, so ours is the victim
					cycle.Go(func() {
						_, err := other.Exec("UPDATE accounts SET n = n + 1 WHERE id = 1")
						if err = errors.Join(err, other.Rollback()); err != nil {
							t.Errorf("the other transaction: %v", err)
						}
					})
					s.eventually("the other transaction waits", func() bool {
						return holds(s.pools.read, "SELECT count(*) = 1 FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'UPDATE accounts%id = 1'")
					})
				}
				err := s.insert(c, tx)
				c.String(http.StatusCreated, "paid")
				return err
			}))
			if again {
				s.want(s.pay("k1"), paid)
				s.wantTold(telemetry.EventConflict, driver.ErrConflict)
			} else {
				s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
				s.wantTold(telemetry.EventReleased, driver.ErrConflict)
				s.wantState("k1", driver.StateNone)
				s.wantPayments(1) // the first
				s.want(s.pay("k1"), paid)
			}
			s.want(s.pay("k1"), paidBefore)
			s.wantPayments(2)
			s.wantMisuse(nil)
			s.wantCleanPool()
		})
	}
}

// The opening statement or its reply is lost, or the process is paused before the one or the other. No handler runs on the word
// of a transaction that may not be there, and the key is free once the server has noticed.
func TestJoinedOpeningStatementThatIsLostStartsNothing(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(p *testserver.Proxy) (restore func()){
		"lost":          func(p *testserver.Proxy) func() { p.DropNextRequest(opening); return func() {} },
		"reply lost":    func(p *testserver.Proxy) func() { p.DropNextReply(opening); return func() {} },
		"late":          func(p *testserver.Proxy) func() { return p.HoldNext(opening).Release },
		"reply is late": func(p *testserver.Proxy) func() { return p.HoldNextReply(opening).Release },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var proxy *testserver.Proxy
			s := startCompound(t, serviceParts{rewrite: throughProxy(t, &proxy), engine: []idem.Option{idem.WithLockTimeout(2 * time.Second)}})
			restore := lose(proxy)
			s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
			if s.runs != 1 {
				t.Errorf("the handler ran %d times, want only that of the first key", s.runs)
			}
			restore()
			s.with(s.paying(http.StatusCreated))
			s.eventually("the retry is answered", func() bool { return s.pay("k1").status == http.StatusCreated })
			s.want(s.pay("k1"), paidBefore)
			s.wantPayments(2)
			s.wantNothingOpen("at the end")
			s.wantCleanPool()
		})
	}
}

// KILL QUERY of an administrator, or a limit for statements, ends a compound statement halfway. The client is told what became of
// the payment, and the session goes to nobody with half of its settings.
func TestJoinedCompoundStatementThatIsEndedHalfwayPaysOnce(t *testing.T) {
	t.Parallel()
	const (
		inInsert = "CREATE TRIGGER waits BEFORE INSERT ON idem_records FOR EACH ROW SET NEW.form = NEW.form + 0 * GET_LOCK(DATABASE(), 3600)"
		inUpdate = "CREATE TRIGGER waits BEFORE UPDATE ON idem_records FOR EACH ROW SET NEW.form = NEW.form + 0 * GET_LOCK(DATABASE(), 3600)"
	)
	for name, c := range map[string]struct {
		trigger string
		limit   bool // the handler has set a limit for statements
		told    error
	}{
		"KILL QUERY in the insert":       {inInsert, false, nil},
		"KILL QUERY after the savepoint": {"", false, nil},
		"KILL QUERY in the update":       {inUpdate, false, driver.ErrRolledBack},
		"a limit in the update":          {inUpdate, true, driver.ErrRolledBack},
		"KILL QUERY in COMMIT":           {"", false, driver.ErrRolledBack},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, inCommit := compounding, name == "KILL QUERY in COMMIT"
			if inCommit { // it locks the whole server
				own := testserver.StartMariaDB(t, "--innodb-flush-method=nosync").URL()
				b.fresh = func(tb testing.TB) pools { return freshMySQL(tb, own).compound(tb) }
			}
			s := startService(t, b, serviceParts{sees: func(*statement) {}})
			s.want(s.pay("first"), paid)
			locker, err := s.pools.read.Conn(context.Background())
			must(t, err)
			defer locker.Close()
			lock := func(statement string) {
				t.Helper()
				must(t, errOf(locker.ExecContext(context.Background(), statement)))
			}
			lock("DO GET_LOCK(DATABASE(), 3600)")
			switch {
			case c.trigger != "":
				mustExec(t, s.pools.read, c.trigger)
			case !inCommit:
				s.spy.sees(func(st *statement) {
					st.text = strings.Replace(st.text, "END; SELECT CONNECTION_ID()", "END; DELETE FROM payments; SELECT CONNECTION_ID()", 1)
				})
				lock("LOCK TABLES payments WRITE")
			}
			s.with(s.inTx(func(gc *gin.Context, tx *sql.Tx) error {
				err := s.insert(gc, tx)
				if c.limit {
					_, limit := tx.Exec("SET SESSION max_statement_time = 0.1")
					err = errors.Join(err, limit)
				}
				if inCommit {
					lock("FLUSH TABLES WITH READ LOCK")
				}
				gc.String(http.StatusCreated, "paid")
				return err
			}))
			first := make(chan answer, 1)
			go func() { first <- s.pay("k1") }()
			if !c.limit {
				var id int64
				s.eventually("the statement waits", func() bool {
					return s.pools.read.QueryRow("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() AND state IN ('User lock', 'Waiting for backup lock', 'Waiting for table metadata lock')").Scan(&id) == nil
				})
				mustExec(t, s.pools.read, fmt.Sprint("KILL QUERY ", id))
			}
			lock("UNLOCK TABLES")
			s.want(<-first, refused(503, idem.CodeUnavailable))
			s.spy.sees(func(*statement) {})
			lock("DO RELEASE_LOCK(DATABASE())")
			mustExec(t, s.pools.read, "DROP TRIGGER IF EXISTS waits")
			s.wantTold(telemetry.EventReleased, c.told)
			s.wantPayments(1)
			s.wantCleanPool()
			s.with(s.paying(http.StatusCreated))
			s.want(s.pay("k1"), paid)
			s.want(s.pay("k1"), paidBefore)
			s.wantPayments(2)
			s.wantMisuse(nil)
			s.wantCleanPool()
		})
	}
}

// A repeat is answered although others have locked the record, as a decision about it or its removal does.
func TestJoinedRepeatWaitsForNoLockOfItsRecord(t *testing.T) {
	t.Parallel()
	onMariaDB(t, serviceParts{store: []sqlstore.Option{sqlstore.WithExpiry(0)}}, func(s *service) {
		s.want(s.pay("k1"), paid)
		mustExec(s, s.pools.read, "UPDATE idem_records SET settled = settled - 16 * 60 * 1000000") // it is on the disk
		locked, err := s.pools.read.Begin()
		must(s, err)
		defer locked.Rollback()
		must(s, errOf(locked.Exec("UPDATE idem_records SET rev = rev + 1")))
		s.want(s.pay("k1"), paidBefore)
	})
}

// Others have locked the place in the index where the record belongs. That is no other attempt of the key, so the
// payment waits for them.
func TestJoinedLockedGapIsNoOtherAttempt(t *testing.T) {
	t.Parallel()
	onMariaDB(t, serviceParts{store: []sqlstore.Option{sqlstore.WithExpiry(0)}}, func(s *service) {
		longer := "time_ms > 200"
		if !s.isMariaDB() {
			longer = "time >= 1"
		}
		gap, err := s.pools.read.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		must(s, err)
		defer gap.Rollback()
		must(s, errOf(gap.Exec("SELECT k FROM idem_records FOR UPDATE"))) // it is empty
		answered := make(chan answer, 1)
		go func() { answered <- s.pay("k1") }()
		s.eventually("the insert waits", func() bool {
			// The table of transactions shows no news to those who ask more often than each tenth of a second.
			return holds(s.pools.read, "SELECT count(*) = 1 FROM information_schema.processlist WHERE db = DATABASE() AND command IN ('Query', 'Execute') AND "+longer+" AND id <> CONNECTION_ID()")
		})
		must(s, gap.Rollback())
		s.want(<-answered, paid)
		s.wantPayments(1)
	})
}

// At REPEATABLE READ a transaction sees the data of the time of its first read. That is one of the handler.
func TestJoinedHandlerSeesWhatIsCommittedBeforeItReads(t *testing.T) {
	t.Parallel()
	onMariaDB(t, serviceParts{joined: []sqlstore.JoinedOption{sqlstore.WithIsolation(sql.LevelRepeatableRead)}}, func(s *service) {
		for n, key := range []string{"k1", "k2"} { // the second has a connection that tells what it can
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				mustExec(s, s.pools.read, "INSERT INTO payments VALUES ('before', 1)")
				var seen int
				err := tx.QueryRow("SELECT count(*) FROM payments").Scan(&seen)
				if mustExec(s, s.pools.read, "INSERT INTO payments VALUES ('after', 1)"); err == nil && seen != 2*n+1 {
					s.Errorf("the handler sees %d payments, want %d", seen, 2*n+1)
				}
				var still int
				if err := tx.QueryRow("SELECT count(*) FROM payments").Scan(&still); err != nil || still != seen {
					s.Errorf("the handler sees %d payments later, %v, want %d as before", still, err, seen)
				}
				c.String(http.StatusCreated, "paid")
				return err
			}))
			s.want(s.pay(key), paid)
		}
	})
}

// A goroutine of the handler writes on beside the closing statement. Each of its writes commits with the payment or not at all, although
// each statement of the session commits by itself after that one.
func TestJoinedGoroutineBesideTheClosingStatementWritesNothingAfterIt(t *testing.T) {
	t.Parallel()
	onStrict(t, serviceParts{}, func(s *service) {
		for n := range 50 {
			ended := make(chan struct{})
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				err := s.insert(c, tx)
				go func() {
					defer close(ended)
					for err := error(nil); err == nil; {
						_, err = tx.Exec("INSERT INTO payments VALUES ('goroutine', @@in_transaction)")
					}
				}()
				c.String(http.StatusCreated, "paid")
				return err
			}))
			key := fmt.Sprint("k", n)
			s.want(s.pay(key), paid)
			<-ended
			if alone := get[int](s, s.pools.read, "SELECT count(*) FROM payments WHERE amount = 0"); alone > 0 {
				s.Fatalf("the goroutine has written %d rows after the transaction", alone)
			}
			s.want(s.pay(key), paidBefore)
		}
		s.wantMisuse(nil)
		s.wantNothingOpen("after the goroutines")
		s.wantCleanPool()
	})
}

// A goroutine of the handler calls Commit or Rollback beside the closing statement.
func TestJoinedTransactionEndedByAGoroutineBesideTheClosingStatement(t *testing.T) {
	t.Parallel()
	onStrict(t, serviceParts{}, func(s *service) {
		for name, end := range map[string]func(tx *sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
			for n := range 50 {
				ended := make(chan struct{})
				s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
					err := s.insert(c, tx)
					go func() {
						defer close(ended)
						_ = end(tx)
					}()
					c.String(http.StatusCreated, "paid")
					return err
				}))
				key := fmt.Sprint(name, n)
				a := s.pay(key)
				<-ended
				if n := s.paidTo(key); a.status == 201 && n != 1 {
					s.Errorf("%s = %v, and the ledger has %d payments of it", key, a, n)
				}
				s.with(s.paying(http.StatusCreated))
				again := s.pay(key)
				if n := s.paidTo(key); n > 1 || again.status == 201 && n != 1 || a.status == 201 && again != paidBefore {
					s.Errorf("%s = %v, and then %v, and the ledger has %d payments of it", key, a, again, n)
				}
			}
		}
		s.wantNothingOpen("after the goroutines")
		s.wantCleanPool()
	})
}

// The session has another sql_mode, in which text and compound statements are written in another way, from the start or since
// the handler has set it.
func TestJoinedCompoundStatementsInEachMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"", "ANSI", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,IGNORE_SPACE", "ORACLE", "TRADITIONAL"} {
		for _, set := range []string{"session", "handler"} {
			t.Run(mode+" of the "+set, func(t *testing.T) {
				t.Parallel()
				s := startService(t, compounding, serviceParts{rewrite: func(p *pools) {
					if set == "session" {
						p.write = p.with(t, "sql_mode=%27"+strings.ReplaceAll(mode, ",", "%2C")+"%27")
					}
				}})
				statements := []string{"pay"}
				if set == "handler" {
					statements = append(statements, "SET SESSION sql_mode = '"+mode+"'")
				}
				s.with(s.sending(http.StatusCreated, statements...))
				for _, key := range []string{"k1", "k2", "k3"} {
					s.eventually(key+" is paid", func() bool { return s.pay(key).status == http.StatusCreated })
					s.want(s.pay(key), paidBefore)
				}
				s.wantPayments(3)
				s.wantMisuse(nil)
			})
		}
	}
}
