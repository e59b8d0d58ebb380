package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// onMariaDB runs a test on MariaDB, and on MySQL if a server is named.
func onMariaDB(t *testing.T, p serviceParts, f func(s *service)) {
	t.Helper()
	onEach(t, func(t *testing.T, b backend) {
		if b.dialect == MySQL() {
			f(startService(t, b, p))
		}
	})
}

// startOn starts a service on one database.
func startOn(t *testing.T, d Dialect, p serviceParts) *service {
	t.Helper()
	for _, b := range backends() {
		if b.dialect == d {
			return startService(t, b, p)
		}
	}
	t.Fatalf("no %v", d)
	return nil
}

// eventually waits for a condition.
func (s *service) eventually(what string, ok func() bool) {
	s.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			s.Fatalf("never happened: %s", what)
		}
		<-tick.C
	}
}

// wantOnePayment retries a key until it is answered, and wants one payment.
func (s *service) wantOnePayment(key string) {
	s.Helper()
	s.with(s.paying(http.StatusCreated))
	s.eventually("the retry is answered with the payment", func() bool {
		a := s.pay(key)
		if a.code != "" && a.code != string(idem.CodeUnavailable) && a.code != string(idem.CodeInProgress) {
			s.Fatalf("retry = %v", a)
		}
		return a.status == 201
	})
	s.want(s.pay(key), paidBefore)
	s.wantPayments(1)
}

// wantMisuse wants the developer to have been told once.
func (s *service) wantMisuse(want error) {
	s.Helper()
	if told := s.saw(idem.EventMisused); len(told) != 1 || !errors.Is(told[0], want) {
		s.Errorf("the developer was told %v, want %v", told, want)
	}
}

// wantCleanPool looks at every connection for what a transaction has left.
func (s *service) wantCleanPool() {
	s.Helper()
	for range s.pools.write.Stats().OpenConnections {
		conn, err := s.pools.write.Conn(context.Background())
		if err != nil {
			s.Fatal(err)
		}
		defer conn.Close()
		var autocommit, wait, global int
		err = conn.QueryRowContext(context.Background(), "SELECT @@autocommit, @@wait_timeout, @@global.wait_timeout").Scan(&autocommit, &wait, &global)
		if err != nil || autocommit != 1 || wait != global {
			s.Errorf("a connection of the pool has autocommit %d, wait_timeout %d, %v, want 1, %d", autocommit, wait, err, global)
		}
	}
}

// 1. A deadlock ends the whole transaction on MySQL and MariaDB.
func TestJoinedWritesAfterASwallowedDeadlockDoNotCommit(t *testing.T) {
	onMariaDB(t, serviceParts{}, func(s *service) {
		mustExec(s, s.pools.write, "CREATE TABLE accounts (id INT PRIMARY KEY, n INT NOT NULL)")
		for id := range 50 {
			mustExec(s, s.pools.write, "INSERT INTO accounts VALUES (?, 0)", id)
		}
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			if _, err := tx.Exec("UPDATE accounts SET n = 1 WHERE id = 1"); err != nil {
				return err
			}
			// The other transaction has changed more, so the server chooses ours as the victim.
			other, err := s.pools.read.Begin()
			if err != nil {
				return err
			}
			defer other.Rollback()
			if _, err := other.Exec("UPDATE accounts SET n = n + 1 WHERE id > 1"); err != nil {
				return err
			}
			var cycle sync.WaitGroup
			defer cycle.Wait()
			cycle.Go(func() { _, _ = other.Exec("UPDATE accounts SET n = n + 1 WHERE id = 1") })
			_, err = tx.Exec("UPDATE accounts SET n = 1 WHERE id = 2")
			if mysqlNumber(err) != 1213 {
				s.Errorf("UPDATE = %v, want a deadlock", err)
			}
			err = s.insert(c, tx)
			c.String(201, "paid")
			return err
		}))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		s.wantMisuse(idem.ErrSwallowed)
		s.wantPayments(0)
		s.wantCleanPool()
		s.wantOnePayment("k1")
	})
}

// 1. So does a changed row under innodb_snapshot_isolation.
func TestJoinedWritesAfterASwallowedSnapshotConflictDoNotCommit(t *testing.T) {
	onMariaDB(t, serviceParts{joined: []JoinedOption{WithIsolation(sql.LevelRepeatableRead)}}, func(s *service) {
		if s.backend.name != "MariaDB" {
			return
		}
		mustExec(s, s.pools.write, "CREATE TABLE accounts (id INT PRIMARY KEY, n INT NOT NULL)")
		mustExec(s, s.pools.write, "INSERT INTO accounts VALUES (1, 0)")
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			if _, err := tx.Exec("SET SESSION innodb_snapshot_isolation = ON"); err != nil {
				return err
			}
			var n int
			if err := tx.QueryRow("SELECT n FROM accounts WHERE id = 1").Scan(&n); err != nil {
				return err
			}
			mustExec(s, s.pools.read, "UPDATE accounts SET n = 7 WHERE id = 1")
			if _, err := tx.Exec("UPDATE accounts SET n = 1 WHERE id = 1"); mysqlNumber(err) != 1020 {
				s.Errorf("UPDATE = %v, want error 1020", err)
			}
			err := s.insert(c, tx)
			c.String(201, "paid")
			return err
		}))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		s.wantPayments(0)
		s.wantOnePayment("k1")
	})
}

// 2. An error in a statement can end the transaction on SQLite.
func TestJoinedWritesAfterALostTransactionAreRefusedOnSQLite(t *testing.T) {
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
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			defer cancel()
			_, err := tx.ExecContext(ctx, "INSERT INTO taken WITH RECURSIVE r(x) AS (SELECT 10 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startOn(t, SQLite(), serviceParts{})
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
			s.wantMisuse(idem.ErrSwallowed)
			s.wantPayments(0)
			s.wantOnePayment("k1")
		})
	}
}

// 3. A bank was called for 100, and then everything was rolled back.
func TestJoinedRetryForAnotherAmountIsRefusedAfterABankWasCalled(t *testing.T) {
	onEachService(t, serviceParts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }}, func(s *service) {
		var keys []string
		s.with(func(c *gin.Context) {
			key, err := idem.DownstreamKey(c, "bank")
			if err != nil {
				s.Error(err)
			}
			keys = append(keys, key)
			s.paying(http.StatusBadGateway)(c)
		})
		s.want(s.payAmount("k1", 100), answer{status: 502, body: "paid"})
		s.want(s.payAmount("k1", 900), refused(422, idem.CodeKeyReused))
		s.want(s.payAmount("k1", 100), answer{status: 502, body: "paid"})
		if len(keys) != 2 || keys[0] != keys[1] {
			s.Errorf("the bank saw the keys %q, want the same one twice", keys)
		}
		s.wantPayments(0)
		s.wantOnePayment("k1")
	})
}

// 3. Two bodies at once: one of them is bound.
func TestJoinedBindingDecidesBetweenTwoBodiesAtOnce(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		for i := range 20 {
			id := idem.NewKeyID("merchant", idem.Key(rune('a'+i)))
			var bound [2]idem.Fingerprint
			var both sync.WaitGroup
			for j := range bound {
				both.Go(func() {
					fp := idem.Fingerprint{Version: 1, Sum: [32]byte{byte(j + 1)}}
					var err error
					if bound[j], err = s.joined.Bind(context.Background(), id, fp, time.Hour); err != nil {
						s.Error(err)
					}
				})
			}
			both.Wait()
			if bound[0] != bound[1] || bound[0].IsZero() {
				s.Errorf("bound %v and %v, want one of the two", bound[0], bound[1])
			}
		}
	})
}

// 3. A binding ends with the key's time to live, and every attempt extends it.
func TestJoinedBindingLastsForTheKeysTime(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		id, ctx := idem.NewKeyID("merchant", "k1"), context.Background()
		first, second := idem.Fingerprint{Version: 1, Sum: [32]byte{1}}, idem.Fingerprint{Version: 1, Sum: [32]byte{2}}
		bind := func(fp idem.Fingerprint, ttl time.Duration, want idem.Fingerprint) {
			s.Helper()
			if got, err := s.joined.Bind(ctx, id, fp, ttl); err != nil || got != want {
				s.Errorf("Bind() = %v, %v, want %v", got.Sum[0], err, want.Sum[0])
			}
		}
		bind(first, time.Microsecond, first)
		s.eventually("the binding expires", func() bool {
			got, err := s.joined.Bind(ctx, id, second, time.Minute)
			return err == nil && got == second
		})
		bind(first, time.Hour, second)
		bind(second, time.Hour, second)
		var left int64
		if err := s.pools.read.QueryRow(s.joined.names.sql("SELECT expires - {clock} FROM {bindings}")).Scan(&left); err != nil || left < (50*time.Minute).Microseconds() {
			s.Errorf("the binding lasts for %d µs, %v, want an hour", left, err)
		}
	})
}

// 4. A handler commits by itself.
func TestJoinedCommitByTheHandlerLeavesNoPaymentWithoutARecord(t *testing.T) {
	type end struct {
		answer answer
		state  idem.State
		told   error
	}
	unknown := end{refused(409, idem.CodeOutcomeUnknown), idem.StateUnknown, idem.ErrEscaped}
	undone := end{refused(503, idem.CodeUnavailable), idem.StateNone, idem.ErrSwallowed}
	for name, tt := range map[string]struct {
		commit                    func(tx *sql.Tx) error
		postgres, mariadb, sqlite end
	}{
		"sql.Tx.Commit":   {func(tx *sql.Tx) error { return tx.Commit() }, undone, unknown, undone},
		"sql.Tx.Rollback": {func(tx *sql.Tx) error { return tx.Rollback() }, undone, undone, undone},
		// SQLite refuses it, and the transaction goes on.
		"COMMIT":   {func(tx *sql.Tx) error { _, err := tx.Exec("COMMIT"); return err }, unknown, unknown, end{paid, idem.StateCompleted, nil}},
		"ROLLBACK": {func(tx *sql.Tx) error { _, err := tx.Exec("ROLLBACK"); return err }, unknown, undone, undone},
	} {
		t.Run(name, func(t *testing.T) {
			onEachService(t, serviceParts{}, func(s *service) {
				want := map[string]end{"PostgreSQL": tt.postgres, "MariaDB": tt.mariadb, "MySQL": tt.mariadb, "SQLite": tt.sqlite}[s.backend.name]
				s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
					err := s.insert(c, tx)
					_ = tt.commit(tx)
					c.String(201, "paid")
					return err
				}))
				s.want(s.pay("k1"), want.answer)
				s.wantState("k1", want.state)
				switch want.state {
				case idem.StateNone:
					s.wantMisuse(want.told)
					s.wantOnePayment("k1")
				case idem.StateUnknown:
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
	for name, status := range map[string]int{"success": 201, "refusal": 402, "failure": 500} {
		t.Run(name, func(t *testing.T) {
			s := startOn(t, PostgreSQL(), serviceParts{})
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				err := s.insert(c, tx)
				for _, statement := range []string{"SET LOCAL session_replication_role = replica", "COMMIT", "BEGIN"} {
					_, failed := tx.Exec(statement)
					err = errors.Join(err, failed)
				}
				c.String(status, "done")
				return err
			}))
			s.want(s.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
			s.wantMisuse(idem.ErrEscaped)
			s.wantState("k1", idem.StateUnknown)
		})
	}
}

// 4. Statements that commit on MySQL, after which the handler fails.
func TestJoinedDDLByTheHandlerIsUnknownOnMariaDB(t *testing.T) {
	for _, statement := range []string{"CREATE TABLE notes (x INT)", "ANALYZE TABLE payments", "BEGIN", "SET autocommit = 1"} {
		for _, status := range []int{201, 402, 500} {
			t.Run(statement+" "+http.StatusText(status), func(t *testing.T) {
				onMariaDB(t, serviceParts{}, func(s *service) {
					s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
						if err := s.insert(c, tx); err != nil {
							return err
						}
						_, err := tx.Exec(statement)
						c.String(status, "committed")
						return err
					}))
					s.want(s.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
					s.wantMisuse(idem.ErrEscaped)
					s.wantState("k1", idem.StateUnknown)
					s.want(s.pay("k1"), answer{status: map[int]int{201: 409, 402: 402, 500: 500}[status], code: map[int]string{201: "outcome-unknown"}[status],
						body: "committed", replayed: status != 201})
					s.wantPayments(1)
					s.wantCleanPool()
				})
			})
		}
	}
}

// 4. On PostgreSQL and SQLite DDL is a part of the transaction.
func TestJoinedDDLCommitsWithThePayment(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		if s.backend.dialect == MySQL() {
			return
		}
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			if err := s.insert(c, tx); err != nil {
				return err
			}
			_, err := tx.Exec("CREATE TABLE notes (x INT)")
			c.String(201, "paid")
			return err
		}))
		s.want(s.pay("k1"), paid)
		s.wantPayments(1)
	})
}

// 4. The process dies after DDL has committed the pending record.
func TestJoinedPendingRecordThatWasCommittedIsUnknown(t *testing.T) {
	onMariaDB(t, serviceParts{}, func(s *service) {
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			if err := s.insert(c, tx); err != nil {
				return err
			}
			_, err := tx.Exec("CREATE TABLE notes (x INT)")
			c.String(201, "paid")
			return err
		}))
		finish := s.started("k1")
		other := startService(s.T, s.backend, serviceParts{pools: &s.pools})
		other.want(other.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
		other.wantState("k1", idem.StateUnknown)
		s.want(finish(), refused(409, idem.CodeOutcomeUnknown))
		s.wantPayments(1)
	})
}

// 5. A handler works with savepoints of any name.
func TestJoinedSavepointsOfTheHandlerDoNotSurviveARollback(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		for _, status := range []int{402, 201} {
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				for i, statement := range []string{"SAVEPOINT idem", "", "SAVEPOINT idem", "", "ROLLBACK TO SAVEPOINT idem", "RELEASE SAVEPOINT idem"} {
					var err error
					if statement == "" {
						err = s.insert(c, tx)
					} else {
						_, err = tx.Exec(statement)
					}
					if err != nil {
						return errors.Join(err, errors.New(statement), errors.New(string(rune('0'+i))))
					}
				}
				c.String(status, "done")
				return nil
			}))
			s.want(s.pay(fmt.Sprint(status)), answer{status: status, body: "done"})
			if status == 402 {
				s.wantPayments(0)
			}
		}
		s.wantPayments(1)
	})
}

// 6. The server ends the connection in the middle of COMMIT, and has rolled back.
func TestJoinedCommitThatEndsWithTheConnectionIsProbed(t *testing.T) {
	s := startOn(t, PostgreSQL(), serviceParts{})
	mustExec(t, s.pools.write, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$`)
	mustExec(t, s.pools.write, "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()")
	s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
	s.wantState("k1", idem.StateNone)
	s.wantPayments(0)
	mustExec(t, s.pools.write, "DROP TRIGGER die ON payments")
	s.wantOnePayment("k1")
}

// throughProxy has the pool for writing go through a proxy.
func throughProxy(t *testing.T, proxy **testserver.Proxy) func(*pools) {
	return func(p *pools) {
		t.Helper()
		if strings.HasPrefix(p.dsn, "postgres") {
			u, err := url.Parse(p.dsn)
			if err != nil {
				t.Fatal(err)
			}
			*proxy = testserver.StartTCPProxy(t, u.Host)
			u.Host = (*proxy).Addr()
			p.write = open(t, "pgx", u.String())
			return
		}
		cfg, err := mysqldriver.ParseDSN(p.dsn)
		if err != nil {
			t.Fatal(err)
		}
		*proxy = testserver.StartTCPProxy(t, cfg.Addr)
		cfg.Addr = (*proxy).Addr()
		p.write = open(t, "mysql", cfg.FormatDSN())
	}
}

// onServers runs a test on each database that is a server, through a proxy.
func onServers(t *testing.T, p serviceParts, f func(s *service, proxy *testserver.Proxy)) {
	t.Helper()
	onEach(t, func(t *testing.T, b backend) {
		if b.dialect == SQLite() {
			return
		}
		var proxy *testserver.Proxy
		p.rewrite = throughProxy(t, &proxy)
		f(startService(t, b, p), proxy)
	})
}

// commitRequest is COMMIT as the drivers send it.
func commitRequest(s *service) testserver.Match {
	if s.backend.dialect == PostgreSQL() {
		return testserver.Contains("commit\x00")
	}
	return testserver.Contains("COMMIT")
}

// 6. The answer to COMMIT is lost, as PgBouncer loses it.
func TestJoinedCommitWhoseAnswerIsLostIsAnsweredAsCommitted(t *testing.T) {
	onServers(t, serviceParts{}, func(s *service, proxy *testserver.Proxy) {
		proxy.DropNextReply(commitRequest(s))
		s.want(s.pay("k1"), paid)
		s.want(s.pay("k1"), paidBefore)
		s.wantPayments(1)
	})
}

func TestJoinedCommitThatNeverArrivesIsRolledBack(t *testing.T) {
	onServers(t, serviceParts{}, func(s *service, proxy *testserver.Proxy) {
		proxy.DropNextRequest(commitRequest(s))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		s.wantOnePayment("k1")
	})
}

// 9. A COMMIT into a black hole ends in limited time.
func TestJoinedCommitIntoABlackHoleEnds(t *testing.T) {
	parts := serviceParts{engine: []idem.Option{idem.WithSettleTimeout(200 * time.Millisecond)}}
	onServers(t, parts, func(s *service, proxy *testserver.Proxy) {
		hold := proxy.HoldNext(commitRequest(s))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable)) // the probe meets the open transaction
		s.wantPayments(0)
		hold.Release()
		s.wantOnePayment("k1")
	})
	onServers(t, parts, func(s *service, proxy *testserver.Proxy) {
		hold := proxy.HoldNextReply(commitRequest(s))
		defer hold.Release()
		s.want(s.pay("k1"), paid)
		s.wantPayments(1)
	})
}

// 9. The database ends the transaction of a process that was suspended, and frees its key.
func TestJoinedKeyOfASuspendedHandlerIsFreed(t *testing.T) {
	onServers(t, serviceParts{joined: []JoinedOption{WithIdleLimit(time.Second)}}, func(s *service, _ *testserver.Proxy) {
		finish := s.started("k1")
		other := startService(s.T, s.backend, serviceParts{pools: &s.pools})
		other.wantOnePayment("k1")
		s.want(finish(), refused(503, idem.CodeUnavailable))
		s.want(s.pay("k1"), paidBefore)
		s.wantPayments(1)
	})
}

// holdKey takes a key in a transaction that no advisory lock tells of.
func (s *service) holdKey(key string) *sql.Tx {
	s.Helper()
	tx, err := s.pools.read.Begin()
	if err != nil {
		s.Fatal(err)
	}
	args := s.joined.insertArgs(&pending{id: idem.NewKeyID("merchant", idem.Key(key)), next: 1, req: idem.JoinedRequest{Nonce: idem.NewNonce()}})
	if _, err := tx.Exec(s.joined.joined.insert, args...); err != nil {
		s.Fatal(err)
	}
	return tx
}

// 10. With REPEATABLE READ a transaction that has waited would not see what was committed meanwhile.
func TestJoinedWinnerOfAWaitSeesWhatWasCommittedMeanwhile(t *testing.T) {
	for name, level := range map[string]sql.IsolationLevel{"REPEATABLE READ": sql.LevelRepeatableRead, "SERIALIZABLE": sql.LevelSerializable} {
		t.Run(name, func(t *testing.T) {
			s := startOn(t, PostgreSQL(), serviceParts{joined: []JoinedOption{WithIsolation(level)}})
			holder := s.holdKey("k1")
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				var n int
				err := tx.QueryRow("SELECT count(*) FROM payments").Scan(&n)
				if n != 1 {
					t.Errorf("the handler sees %d payments, %v, want 1", n, err)
				}
				c.String(201, "paid")
				return err
			}))
			done := make(chan answer, 1)
			go func() { done <- s.pay("k1") }()
			s.eventually("the request waits for the key", func() bool {
				var waiting int
				err := s.pools.read.QueryRow("SELECT count(*) FROM pg_locks WHERE NOT granted").Scan(&waiting)
				return err == nil && waiting > 0
			})
			mustExec(t, s.pools.read, "INSERT INTO payments VALUES ('another', 1)")
			mustExec(t, s.pools.read, "SELECT pg_sleep(0.02)") // longer than a wait that does not matter
			if err := holder.Rollback(); err != nil {
				t.Fatal(err)
			}
			s.want(<-done, paid)
		})
	}
}

// 11. The wait for a key is finite, and its limit is not that of the handler's statements.
func TestJoinedWaitForAKeyEndsAndLeavesTheHandlersLimits(t *testing.T) {
	onEachService(t, serviceParts{engine: []idem.Option{idem.WithLockTimeout(300 * time.Millisecond)}}, func(s *service) {
		limit := map[string]string{"PostgreSQL": "SELECT current_setting('lock_timeout') || current_setting('statement_timeout')", "SQLite": "PRAGMA busy_timeout"}[s.backend.name]
		if limit == "" {
			limit = "SELECT @@innodb_lock_wait_timeout"
		}
		var before, inside string
		if err := s.pools.write.QueryRow(limit).Scan(&before); err != nil {
			s.Fatal(err)
		}
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			err := tx.QueryRow(limit).Scan(&inside)
			c.String(201, "paid")
			return err
		}))
		s.want(s.pay("k1"), paid)
		if inside != before {
			s.Errorf("the handler's limit is %q, want %q as outside", inside, before)
		}
		if s.backend.dialect == SQLite() {
			return
		}
		holder := s.holdKey("k2")
		defer holder.Rollback()
		if a := s.pay("k2"); a.code != string(idem.CodeUnavailable) && a.code != string(idem.CodeInProgress) {
			s.Errorf("answer = %v, want unavailable or in progress", a)
		}
	})
}

// 12. Neither neighbours nor duplicates of a key block each other.
func TestJoinedKeysDoNotBlockTheirNeighbours(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		if s.backend.dialect == SQLite() {
			return // one writer at a time
		}
		finish := s.started("k0")
		for _, key := range []string{"k1", "k2", "k3", "a", "z"} {
			s.want(s.pay(key), paid)
		}
		s.want(finish(), paid)
		s.wantPayments(6)
	})
}

// 12. Duplicates after a rollback meet deadlocks on MySQL, and start over.
func TestJoinedDuplicatesAfterARollbackPayOnce(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		services := []*service{s}
		if s.backend.dialect != SQLite() {
			services = append(services, startService(s.T, s.backend, serviceParts{pools: &s.pools}), startService(s.T, s.backend, serviceParts{pools: &s.pools}))
		}
		for round := range 10 {
			key := string(rune('a' + round))
			s.with(s.paying(http.StatusInternalServerError))
			finish := s.started(key)
			s.with(s.paying(http.StatusCreated))
			var duplicates sync.WaitGroup
			for _, other := range services {
				for range 3 {
					duplicates.Go(func() {
						for {
							switch a := other.pay(key); {
							case a.status == 201:
								return
							case a.code != string(idem.CodeInProgress):
								s.Errorf("duplicate = %v, want in progress or paid", a)
								return
							}
						}
					})
				}
			}
			finish()
			duplicates.Wait()
		}
		s.wantPayments(10)
	})
}

// 13. Handlers that want a connection of their own find one.
func TestJoinedTransactionsLeaveAConnectionToOthers(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		if s.backend.dialect == SQLite() {
			return
		}
		s.pools.write.SetMaxOpenConns(1)
		if _, err := s.backend.store(s, s.pools).Joined(); !errors.Is(err, errSetting) || !strings.Contains(err.Error(), "SetMaxOpenConns") {
			s.Errorf("Joined() on a pool of one = %v, want a refusal with the reason", err)
		}
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			var n int
			if err := s.pools.write.QueryRowContext(c.Request.Context(), "SELECT count(*) FROM payments").Scan(&n); err != nil {
				return err
			}
			err := s.insert(c, tx)
			c.String(201, "paid")
			return err
		}))
		three := startService(s.T, s.backend, serviceParts{pools: &s.pools, pool: 3})
		three.with(s.handle)
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() { three.want(three.pay(string(rune('a'+i))), paid) })
		}
		all.Wait()
		s.wantPayments(12)
	})
}

func TestJoinedSQLiteNeedsAPoolForReadingAndTheFileForItself(t *testing.T) {
	s := startOn(t, SQLite(), serviceParts{})
	for name, store := range map[string]*Store{
		"one pool":        s.backend.store(t, pools{write: s.pools.write, read: s.pools.write}, WithSoleProcess()),
		"other processes": s.backend.store(t, s.pools),
	} {
		if _, err := store.Joined(); !errors.Is(err, errSetting) {
			t.Errorf("%s: Joined() = %v, want a refusal with the reason", name, err)
		}
	}
}

// 15. An error is swallowed, and the handler answers 201.
func TestJoinedSuccessOverASwallowedFailureIsUnavailable(t *testing.T) {
	s := startOn(t, PostgreSQL(), serviceParts{})
	s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
		_, _ = tx.Exec("INSERT INTO nowhere VALUES (1)")
		_ = s.insert(c, tx)
		c.String(201, "paid")
		return nil
	}))
	s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
	s.wantMisuse(idem.ErrSwallowed)
	s.wantPayments(0)
	s.wantOnePayment("k1")
}

// 15. A failed statement that the handler reports is no misuse.
func TestJoinedFailedStatementRollsBackAndARetryRuns(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			err := s.insert(c, tx)
			_, failed := tx.Exec("INSERT INTO nowhere VALUES (1)")
			return errors.Join(err, failed)
		}))
		s.want(s.pay("k1"), answer{status: 500, body: "sorry"})
		if told := s.saw(idem.EventMisused); len(told) != 0 {
			s.Errorf("the developer was told %v, want nothing", told)
		}
		s.wantOnePayment("k1")
	})
}

// 16. Keys that differ in case or in trailing spaces differ, with every option of the driver.
func TestJoinedKeysThatMySQLWouldTakeForEqualDiffer(t *testing.T) {
	for name, option := range map[string]func(*mysqldriver.Config){
		"default":           func(*mysqldriver.Config) {},
		"clientFoundRows":   func(c *mysqldriver.Config) { c.ClientFoundRows = true },
		"interpolateParams": func(c *mysqldriver.Config) { c.InterpolateParams = true },
		"parseTime":         func(c *mysqldriver.Config) { c.ParseTime = true },
		"multiStatements":   func(c *mysqldriver.Config) { c.MultiStatements = true },
	} {
		t.Run(name, func(t *testing.T) {
			onMariaDB(t, serviceParts{rewrite: func(p *pools) {
				cfg, err := mysqldriver.ParseDSN(p.dsn)
				if err != nil {
					t.Fatal(err)
				}
				option(cfg)
				p.write = open(t, "mysql", cfg.FormatDSN())
				p.read = p.write
			}}, func(s *service) {
				keys := []string{"abc", "ABC", `"abc "`, "Abc"}
				for _, key := range keys {
					s.want(s.pay(key), paid)
					s.want(s.pay(key), paidBefore)
				}
				s.with(s.paying(http.StatusPaymentRequired))
				s.want(s.pay("refused"), answer{status: 402, body: "paid"})
				s.want(s.pay("refused"), answer{status: 402, body: "paid", replayed: true})
				s.wantPayments(len(keys))
			})
		})
	}
}

// 17. Duplicates leave no dead rows in table and index.
func TestJoinedDuplicatesDoNotBloatTheIndex(t *testing.T) {
	s := startOn(t, PostgreSQL(), serviceParts{})
	size := func() (n int) {
		err := s.pools.read.QueryRow("SELECT pg_total_relation_size('idem_records')").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	finish := s.started("k1")
	other := startService(t, s.backend, serviceParts{pools: &s.pools})
	before := size()
	for range 300 {
		other.want(other.pay("k1"), refused(409, idem.CodeInProgress))
	}
	s.want(finish(), paid)
	for range 300 {
		other.want(other.pay("k1"), paidBefore)
	}
	if after := size(); after > before+16<<10 {
		t.Errorf("the table grew from %d to %d bytes", before, after)
	}
}

// 18. The times of a record are those of the statements, not that of the transaction's begin.
func TestJoinedTimesAreThoseOfTheStatements(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		var last int64
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			if s.backend.dialect == PostgreSQL() {
				if _, err := tx.Exec("SELECT pg_sleep(0.05)"); err != nil {
					return err
				}
			}
			err := tx.QueryRow(s.joined.names.sql("SELECT {clock}")).Scan(&last)
			c.String(201, "paid")
			return err
		}))
		s.want(s.pay("k1"), paid)
		rec, err := s.joined.Get(context.Background(), idem.NewKeyID("merchant", "k1"))
		if err != nil || rec.Settled.UnixMicro() < last || rec.Started.UnixMicro() > last || !rec.ResultExpires.Equal(rec.Settled.Add(idem.DefaultResultTTL)) &&
			rec.ResultExpires.Sub(rec.Settled.Add(idem.DefaultResultTTL)).Abs() > time.Second {
			s.Errorf("record = %+v, %v, want it settled after %d", rec, err, last)
		}
	})
}
