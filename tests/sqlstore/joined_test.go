package sqlstore_test

import (
	"database/sql"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestJoinedPaymentCommitsWithItsRecord(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		s.wantState("k1", driver.StateNone)
		s.want(s.pay("k1"), paid)
		s.wantState("k1", driver.StateCompleted)
		s.want(s.pay("k1"), paidBefore)
		s.want(s.payAmount("k1", 900), refused(422, idem.CodeKeyReused))
		s.want(s.pay("k2"), paid)
		s.wantPayments(2)
	})
}

func TestJoinedKeyIsPendingUntilItsTransactionEnds(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		finish := s.started("k1")
		s.wantState("k1", driver.StatePending)
		s.want(s.pay("k1"), refused(409, idem.CodeInProgress))
		if s.backend.dialect != dialect.SQLite { // there another instance cannot have the file
			other := startService(s.T, s.backend, serviceParts{pools: &s.pools})
			other.wantState("k1", driver.StatePending)
			other.want(other.pay("k1"), refused(409, idem.CodeInProgress))
		}
		s.wantPayments(0)
		s.want(finish(), paid)
		s.want(s.pay("k1"), paidBefore)
		s.wantPayments(1)
	})
}

func TestJoinedRefusalIsStored(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		s.with(s.paying(http.StatusPaymentRequired))
		s.want(s.pay("k1"), answer{status: 402, body: "paid"})
		s.with(func(c *gin.Context) {
			idem.KeepWrites(c)
			s.paying(http.StatusPaymentRequired)(c)
		})
		s.want(s.pay("k1"), answer{status: 402, body: "paid", replayed: true})
		s.wantPayments(0)
		s.want(s.pay("k2"), answer{status: 402, body: "paid"})
		s.want(s.pay("k2"), answer{status: 402, body: "paid", replayed: true})
		s.wantPayments(1)
	})
}

// A handler that rejects a request before it takes its transaction leaves nothing of it, and the corrected request has the
// key. A one-time token is valid as before.
func TestJoinedRejectionLeavesNothing(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		reject := func(c *gin.Context) { c.String(422, "amount") }
		s.with(reject)
		for range 2 {
			s.want(s.payAmount("k1", 0), answer{status: 422, body: "amount"})
		}
		if n := get[int](s, s.pools.read, s.store.sql("SELECT count(*) FROM {records}")); n > 0 {
			s.Errorf("%d records, want none", n)
		}
		s.with(s.paying(http.StatusCreated))
		s.want(s.pay("k1"), paid)
		s.want(s.payAmount("k1", 0), refused(422, idem.CodeKeyReused))
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			_ = tx.Rollback()
			reject(c)
			return nil
		}))
		if first := s.payAmount("k2", 0); first.code == "" { // MySQL and MariaDB cannot tell what became of it
			s.want(first, answer{status: 422, body: "amount"})
		}
		s.with(s.paying(http.StatusCreated))
		if a := s.pay("k2"); a.code != string(idem.CodeKeyReused) {
			s.Errorf("another request after a rejection in the transaction = %v, want %s", a, idem.CodeKeyReused)
		}
		s.wantPayments(1)
		s.wantNothingOpen("after the rejections")
	})
	onEachService(t, serviceParts{policy: func(p *idem.Policy) { p.IssuedTokens = true }}, func(s *service) {
		token := s.token()
		s.with(func(c *gin.Context) { c.String(422, "amount") })
		s.want(s.payAmount(token, 0), answer{status: 422, body: "amount"})
		s.wantState(token, driver.StateIssued)
		s.with(s.paying(http.StatusCreated))
		s.want(s.pay(token), paid)
		s.want(s.payAmount(token, 0), refused(422, idem.CodeKeyReused))
	})
}

// TestJoinedFailureRollsBackAndARetryRuns goes through every answer that leaves nothing.
func TestJoinedFailureRollsBackAndARetryRuns(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		payments := 0
		for name, fail := range map[string]func(c *gin.Context){
			"500":      func(c *gin.Context) { c.String(500, "sorry") },
			"503":      func(c *gin.Context) { c.String(503, "sorry") },
			"408":      func(c *gin.Context) { c.String(408, "slow") },
			"429":      func(c *gin.Context) { c.String(429, "busy") },
			"401":      func(c *gin.Context) { c.String(401, "who") },
			"NoEffect": func(c *gin.Context) { idem.NoEffect(c); c.String(200, "nothing to do") },
			"panic":    func(*gin.Context) { panic("boom") },
			"failed-statement": func(c *gin.Context) {
				tx, err := sqlstore.Tx(c)
				if err == nil {
					_, err = tx.Exec("INSERT INTO nowhere VALUES (1)")
				}
				c.String(500, "%v", err)
			},
		} {
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				err := s.insert(c, tx)
				fail(c)
				return err
			}))
			if a := s.pay(name); a.replayed || a.code != "" {
				s.Errorf("%s: answer = %v, want that of the handler", name, a)
			}
			s.wantState(name, driver.StateNone)
			s.wantPayments(payments)
			s.with(s.paying(http.StatusCreated))
			s.want(s.pay(name), paid)
			payments++
			s.wantPayments(payments)
		}
		s.wantMisuse(nil)
	})
}

func TestJoinedSuccessWithoutTheTransactionIsAnErrorFromTheFirstRequest(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		s.with(func(c *gin.Context) { c.String(201, "paid elsewhere") })
		s.want(s.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
		s.wantMisuse(idem.ErrNotTaken)
		s.wantState("k1", driver.StateUnknown)
		s.with(func(*gin.Context) { t.Error("the repeat runs a handler that has paid elsewhere") })
		if a := s.pay("k1"); a.code != string(idem.CodeOutcomeUnknown) {
			t.Errorf("the repeat gets %v, want %s", a, idem.CodeOutcomeUnknown)
		}
	})
}

func TestJoinedTokenIsConsumedWithThePayment(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{policy: func(p *idem.Policy) { p.IssuedTokens = true }}, func(s *service) {
		s.want(s.pay("made-up"), refused(403, idem.CodeTokenUnknown))
		token := s.token()
		s.with(s.paying(http.StatusInternalServerError))
		s.want(s.pay(token), answer{status: 500, body: "paid"})
		s.wantState(token, driver.StateIssued)
		s.with(s.paying(http.StatusCreated))
		finish := s.started(token)
		s.wantState(token, driver.StatePending)
		s.want(s.pay(token), refused(409, idem.CodeInProgress))
		s.want(finish(), paid)
		s.want(s.pay(token), paidBefore)
		s.want(s.payAmount(token, 900), refused(422, idem.CodeKeyReused))
		s.wantPayments(1)

		token = s.token()
		s.with(s.paying(http.StatusPaymentRequired))
		s.want(s.pay(token), answer{status: 402, body: "paid"})
		s.want(s.pay(token), answer{status: 402, body: "paid", replayed: true})
		s.wantPayments(1)
	})
}

// The time of a key is over, and its row is still there. It may be due later than that, because a joined record is
// written when its handler begins.
func TestJoinedKeyWhoseTimeIsOverRunsAnewBeforeItsRowIsRemoved(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{store: []sqlstore.Option{sqlstore.WithExpiry(0)}, policy: func(p *idem.Policy) {
		p.ResultTTL, p.KeyTTL = 50*time.Millisecond, 50*time.Millisecond
	}}, func(s *service) {
		s.want(s.pay("k1"), paid)
		mustExec(s, s.pools.write, "UPDATE idem_records SET expires = expires + 3600000000")
		s.with(s.paying(http.StatusPaymentRequired))
		s.eventually("the key is free", func() bool { return s.pay("k1").status == 402 })
		s.with(s.paying(http.StatusCreated))
		s.eventually("the key is free again", func() bool { return s.pay("k1") == paid })
		s.wantPayments(2)
	})
}

// The times of a record are those of its statements, and not that of the transaction's begin. Here the handler takes
// longer than the time for which its result will be kept.
func TestJoinedRecordOfASlowHandlerIsKeptForItsTime(t *testing.T) {
	t.Parallel()
	const ttl = 20 * time.Millisecond
	onEachService(t, serviceParts{store: []sqlstore.Option{sqlstore.WithExpiry(0)}, policy: func(p *idem.Policy) { p.ResultTTL, p.KeyTTL = ttl, time.Hour }}, func(s *service) {
		var began, last int64
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			clock := func() (now int64) {
				if err := tx.QueryRow(s.store.sql("SELECT {clock}")).Scan(&now); err != nil {
					s.Error(err)
				}
				return now
			}
			began = clock()
			s.eventually("the time of the result passes", func() bool { last = clock(); return last > began+2*ttl.Microseconds() })
			err := s.insert(c, tx)
			c.String(201, "paid")
			return err
		}))
		s.want(s.pay("k1"), paid)
		var started, settled, result, expires int64
		err := s.pools.read.QueryRow("SELECT started, settled, result_expires, expires FROM idem_records").Scan(&started, &settled, &result, &expires)
		if err != nil || started > began || settled < last || result != settled+ttl.Microseconds() || expires < result {
			s.Errorf("the record is started at %d and settled at %d, its result lasts until %d and its row until %d, %v, want %v from the settlement after %d", started, settled, result, expires, err, ttl, last)
		}
	})
}

// Services in different schemas of one database know nothing of each other's keys, although
// advisory locks are the database's. The schema is that of the connection.
func TestJoinedKeysOfAnotherSchemaAreFree(t *testing.T) {
	t.Parallel()
	p := freshPostgres(t)
	in := func(schema string) *service {
		mustExec(t, p.write, "CREATE SCHEMA "+schema)
		db := p.with(t, "search_path="+schema)
		return startService(t, backend{"PostgreSQL", dialect.PostgreSQL, func(testing.TB) pools { return pools{write: db, read: db, dsn: p.dsn} }}, serviceParts{})
	}
	one, two := in("one"), in("two")
	finish := one.started("k1")
	two.wantState("k1", driver.StateNone)
	two.want(two.pay("k1"), paid)
	one.want(finish(), paid)
}
