package sqlstore

import (
	"database/sql"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// balance is a handler that moves money if both accounts together have enough. Each of two
// transactions reads what the other one writes. met has the conflicts.
func (s *service) balance(level string, meet func(), met func(error)) func(c *gin.Context, tx *sql.Tx) error {
	return func(c *gin.Context, tx *sql.Tx) error {
		fail := func(err error) error {
			met(err)
			_ = c.Error(err)
			return err
		}
		var sum int
		if err := tx.QueryRow("SELECT sum(n) FROM accounts" + level).Scan(&sum); err != nil {
			return fail(err)
		}
		meet()
		if sum < 100 {
			c.String(http.StatusPaymentRequired, "no funds")
			return nil
		}
		if _, err := tx.Exec(fmt.Sprintf("UPDATE accounts SET n = n - 100 WHERE id = %s", c.Query("account"))); err != nil {
			return fail(err)
		}
		if err := s.insert(c, tx); err != nil { // a conflict may show here too
			return fail(err)
		}
		c.String(201, "paid")
		return nil
	}
}

// TestJoinedConflictOfTwoPaymentsRunsOneAgain has two payments that only one balance covers.
func TestJoinedConflictOfTwoPaymentsRunsOneAgain(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		if b.dialect == SQLite() {
			return // one writer at a time
		}
		s := startService(t, b, serviceParts{joined: []JoinedOption{WithIsolation(sql.LevelSerializable)},
			engine: []idem.Option{idem.WithConflictRetries(3)}, gin: []idemgin.Option{idemgin.WithRerun()}})
		mustExec(t, s.pools.write, "CREATE TABLE accounts (id INT PRIMARY KEY, n INT NOT NULL)")
		mustExec(t, s.pools.write, "INSERT INTO accounts VALUES (1, 50), (2, 50)")
		var both sync.WaitGroup
		both.Add(2)
		var first sync.Map
		meet := func(key string) func() {
			return func() {
				if _, again := first.LoadOrStore(key, true); !again {
					both.Done()
					both.Wait()
				}
			}
		}
		var mu sync.Mutex
		conflicts := 0
		s.with(func(c *gin.Context) {
			s.inTx(s.balance("", meet(c.GetHeader("Idempotency-Key")), func(err error) {
				mu.Lock()
				defer mu.Unlock()
				conflicts++
			}))(c)
		})
		var answers [2]answer
		var done sync.WaitGroup
		for i := range answers {
			done.Go(func() { answers[i] = s.payTo(fmt.Sprintf("/pay?account=%d", i+1), fmt.Sprintf("k%d", i), 100) })
		}
		done.Wait()
		if a, b := answers[0].status, answers[1].status; a+b != 201+402 {
			t.Errorf("answers = %v, want one paid and one refused", answers)
		}
		if told := s.saw(idem.EventConflict); len(told) == 0 {
			t.Error("no transaction met a conflict")
		}
		s.wantPayments(1)
	})
}

func TestJoinedConflictRunsAHandlerOfNetHTTPAgain(t *testing.T) {
	s := startOn(t, PostgreSQL(), serviceParts{engine: []idem.Option{idem.WithConflictRetries(2)}})
	runs := 0
	protect := idemhttp.Middleware(s.engine, idem.Policy{AllowGlobalKeys: true})
	s.serve = protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		tx, err := Tx(r.Context())
		if err != nil {
			t.Error(err)
			return
		}
		w.Header().Set("Location", fmt.Sprint("/payments/", runs))
		if err := s.insert(r.Context(), tx); err != nil {
			t.Error(err)
		}
		if runs < 3 {
			_, err := tx.Exec("DO $$ BEGIN RAISE EXCEPTION 'try again' USING ERRCODE = '40001'; END $$")
			idem.ReportFailure(r.Context(), err)
			http.Error(w, "sorry", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "paid")
	}))
	s.want(s.pay("k1"), paid)
	s.want(s.pay("k1"), paidBefore)
	if runs != 3 {
		t.Errorf("the handler ran %d times, want 3", runs)
	}
	s.wantPayments(1)
}

// Without the option a chain of Gin handlers is not run again, and the client is.
func TestJoinedConflictInAChainOfGinIsLeftToTheClient(t *testing.T) {
	s := startOn(t, PostgreSQL(), serviceParts{engine: []idem.Option{idem.WithConflictRetries(2)}})
	s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
		if err := s.insert(c, tx); err != nil {
			return err
		}
		_, err := tx.Exec("DO $$ BEGIN RAISE EXCEPTION 'try again' USING ERRCODE = '40001'; END $$")
		_ = c.Error(err)
		return err
	}))
	s.want(s.pay("k1"), answer{status: 500, body: "sorry"})
	s.wantOnePayment("k1")
	if s.runs != 2 {
		t.Errorf("the handler ran %d times, want 2", s.runs)
	}
}
