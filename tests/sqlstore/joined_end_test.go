package sqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// failing makes the statements of a kind fail that change records.
func (s *service) failing(kind string) (mend func()) {
	s.Helper()
	fail, mending := "CREATE TRIGGER fails BEFORE "+kind+" ON idem_records FOR EACH ROW SIGNAL SQLSTATE '45000'", "DROP TRIGGER fails"
	switch s.backend.dialect {
	case dialect.PostgreSQL:
		fail = `CREATE OR REPLACE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'it fails'; END $$;
			CREATE TRIGGER fails BEFORE ` + kind + ` ON idem_records FOR EACH ROW EXECUTE FUNCTION fails()`
		mending += " ON idem_records"
	case dialect.SQLite:
		fail = "CREATE TRIGGER fails BEFORE " + kind + " ON idem_records BEGIN SELECT RAISE(ABORT, 'it fails'); END"
	}
	mustExec(s, s.pools.write, fail)
	return func() { mustExec(s, s.pools.write, mending) }
}

// A statement that takes the key fails. That is an outage, and no other request that is in progress.
func TestJoinedKeyThatCannotBeTakenIsUnavailable(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{store: []sqlstore.Option{sqlstore.WithExpiry(0)}}, func(s *service) {
		s.want(s.pay("over"), paid)
		mustExec(s, s.pools.write, "UPDATE idem_records SET result_expires = 1, key_expires = 1, expires = 1")
		s.runs = 0
		for key, kind := range map[string]string{"new": "INSERT", "over": "DELETE"} {
			mend := s.failing(kind)
			s.want(s.pay(key), refused(503, idem.CodeUnavailable))
			s.wantNothingOpen("after a failed " + kind)
			mend()
		}
		if s.runs > 0 {
			s.Error("the handler ran without its key")
		}
		s.want(s.pay("new"), paid)
		s.want(s.pay("over"), paid)
	})
}

// The statement that completes the record fails. Then the payment is rolled back too.
func TestJoinedRecordThatCannotBeCompletedRollsBack(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		mend := s.failing("UPDATE")
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		if told := s.saw(telemetry.EventReleased); len(told) != 1 || !errors.Is(told[0], driver.ErrRolledBack) || errors.Is(told[0], driver.ErrConflict) {
			s.Errorf("released because of %v, want %v", told, driver.ErrRolledBack)
		}
		s.wantMisuse(nil)
		s.wantState("k1", driver.StateNone)
		s.wantNothingOpen("after the failure")
		mend()
		s.wantOnePayment("k1")
	})
}

// A payment without its record is not committed, even if a handler has removed that by itself.
func TestJoinedPaymentWithoutItsRecordDoesNotCommit(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		s.with(s.sending(http.StatusCreated, "pay", "DELETE FROM idem_records"))
		if a := s.pay("k1"); a.code != string(idem.CodeUnavailable) && a.code != string(idem.CodeOutcomeUnknown) {
			s.Errorf("answer = %v, want %v or %v", a, idem.CodeUnavailable, idem.CodeOutcomeUnknown)
		}
		s.wantPayments(0)
		s.wantNothingOpen("after the answer")
	})
}

// Whoever ends the transaction first, the client is told what the database has, and nothing is paid twice. With pipelines the statement that
// completes the record goes with the COMMIT of the goroutine, or the server refuses that COMMIT.
func TestJoinedTransactionEndedByAGoroutineOfTheHandlerBesideCommit(t *testing.T) {
	t.Parallel()
	for _, b := range []backend{backends()[0], throughPgBouncer, pipelined} {
		b.run(t, func(t *testing.T, b backend) {
			const keys = 50
			s := startService(t, b, serviceParts{sees: func(*statement) {}})
			for name, end := range map[string]func(tx *sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
				for n := range keys {
					ended := make(chan struct{})
					s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
						s.spy.once("settlement = ", func() { // in the statement that completes the record
							go func() {
								defer close(ended)
								_ = end(tx)
							}()
						})
						c.String(http.StatusCreated, "paid")
						return s.insert(c, tx)
					}))
					key := fmt.Sprint(name, n)
					if a := s.pay(key); a.status != 201 && a.status != 503 {
						t.Errorf("%s = %v, want paid or unavailable", key, a)
					}
					<-ended
					s.with(s.paying(http.StatusCreated))
					if a := s.pay(key); a.status != 201 {
						t.Errorf("%s again = %v, want paid", key, a)
					}
				}
			}
			s.wantPayments(2 * keys)
			s.wantNothingOpen("after the goroutines")
		})
	}
}

// A ROLLBACK into a black hole ends in limited time, and its connection leaves the pool.
func TestJoinedRollbackIntoABlackHoleEnds(t *testing.T) {
	t.Parallel()
	onServers(t, serviceParts{engine: []idem.Option{idem.WithSettleTimeout(2 * time.Second)}}, func(s *service, proxy *testserver.Proxy) {
		text := testserver.Contains("rollback\x00")
		statuses := map[string]int{"k1": 500}
		if s.backend.dialect == dialect.MySQL { // there one follows each COMMIT, too
			text = testserver.Contains("\x03ROLLBACK") // not one within a compound statement
			if s.backend.name != compounding.name {
				statuses["k2"] = 201
			}
		}
		for key, status := range statuses {
			s.with(s.paying(status))
			hold := proxy.HoldNext(text)
			answered := make(chan answer, 1)
			go func() { answered <- s.pay(key) }()
			select {
			case a := <-answered:
				s.want(a, answer{status: status, body: "paid"})
			case <-time.After(patience / 2):
				s.Errorf("the request that is answered with %d still waits for its ROLLBACK", status)
			}
			hold.Release()
			s.wantNothingOpen("after the black hole")
		}
		s.with(s.paying(http.StatusCreated))
		s.eventually("the retry is paid", func() bool { return s.pay("k1").status == 201 })
		s.wantPayments(len(statuses))
	})
}

// A connection serves the next request too, whatever the handler has answered.
func TestJoinedSessionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		s := startService(t, b, serviceParts{})
		number := "SELECT pg_backend_pid()"
		if b.dialect == dialect.MySQL {
			number = "SELECT CONNECTION_ID()"
		}
		used := map[int]bool{}
		for n := range 12 {
			status := []int{201, 402, 500}[n%3]
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				var id int
				err := errors.Join(tx.QueryRow(number).Scan(&id), s.insert(c, tx))
				used[id] = true
				c.String(status, "paid")
				return err
			}))
			s.want(s.pay(fmt.Sprint("k", n)), answer{status: status, body: "paid"})
		}
		if len(used) > 2 { // another one is in use beside a transaction
			t.Errorf("12 requests in a row had %d connections, want at most 2", len(used))
		}
	})
}

// CheckOwner is the gate before a call to another system. It is closed once the transaction has gone.
func TestJoinedCheckOwnerAfterTheTransactionIsLost(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }}, func(s *service) {
		check := func(statement string, want error) {
			s.Helper()
			ran := false
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				ran = true
				if _, err := idem.CheckOwner(c); err != nil {
					s.Errorf("CheckOwner() in the transaction = %v, want <nil>", err)
				}
				_, _ = tx.Exec(statement)
				if _, err := idem.CheckOwner(c); !errors.Is(err, want) {
					s.Errorf("CheckOwner() after %s = %v, want %v", statement, err, want)
				}
				return errors.New("give up")
			}))
			if a := s.pay(driver.NewNonce().String()); a.status < 400 || !ran {
				s.Errorf("the answer after %s is %v, want an error of the handler", statement, a)
			}
		}
		check("ROLLBACK", driver.ErrEscaped)
		if s.backend.dialect == dialect.PostgreSQL {
			check("INSERT INTO nowhere VALUES (1)", driver.ErrUnavailable)
		}
		s.wantPayments(0)
	})
}
