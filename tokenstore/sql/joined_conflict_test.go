package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
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
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		if b.dialect == dialect.SQLite {
			return // one writer at a time
		}
		s := startService(t, b, serviceParts{joined: []JoinedOption{WithIsolation(sql.LevelSerializable)},
			engine: []idem.Option{idem.WithConflictRetries(3)}})
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
		if told := s.saw(telemetry.EventConflict); len(told) == 0 {
			t.Error("no transaction met a conflict")
		}
		s.wantPayments(1)
	})
}

func TestJoinedConflictRunsAHandlerOfNetHTTPAgain(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.PostgreSQL, serviceParts{engine: []idem.Option{idem.WithConflictRetries(2)}})
	runs := 0
	protect := idemhttp.MustNew(s.engine, idem.Policy{AllowGlobalKeys: true})
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

// The database may tell of a conflict after the handler has returned. It has rolled back then, and the
// handler runs again.
func TestJoinedConflictAfterTheHandlerRunsItAgain(t *testing.T) {
	t.Parallel()
	const move = "UPDATE accounts SET n = (SELECT sum(n) FROM accounts) WHERE id = "
	for name, c := range map[string]struct {
		prepare   string
		meanwhile func(ctx context.Context, db *sql.DB) error // after the writes of the first run
	}{
		"as the record is completed": {
			meanwhile: func(ctx context.Context, db *sql.DB) error {
				tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
				if err != nil {
					return err
				}
				_, err = tx.ExecContext(ctx, move+"2")
				return errors.Join(err, tx.Commit())
			},
		},
		"at COMMIT": {
			prepare: `CREATE SEQUENCE commits;
				CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF nextval('commits') = 1 THEN RAISE EXCEPTION 'try again' USING ERRCODE = '40001'; END IF;
					RETURN NULL;
				END $$;
				CREATE CONSTRAINT TRIGGER conflict AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION conflict()`,
			meanwhile: func(context.Context, *sql.DB) error { return nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := startOn(t, dialect.PostgreSQL, serviceParts{joined: []JoinedOption{WithIsolation(sql.LevelSerializable)},
				engine: []idem.Option{idem.WithConflictRetries(1)}})
			mustExec(t, s.pools.write, "CREATE TABLE accounts (id INT PRIMARY KEY, n INT NOT NULL)")
			mustExec(t, s.pools.write, "INSERT INTO accounts VALUES (1, 50), (2, 50)")
			if c.prepare != "" {
				mustExec(t, s.pools.write, c.prepare)
			}
			runs := 0
			s.with(s.inTx(func(gc *gin.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(gc, move+"1")
				err = errors.Join(err, s.insert(gc, tx))
				if runs++; runs == 1 {
					err = errors.Join(err, c.meanwhile(gc, s.pools.write))
				}
				if err != nil {
					t.Errorf("run %d: %v", runs, err)
				}
				gc.String(http.StatusCreated, "paid")
				return nil
			}))
			s.want(s.pay("k1"), paid)
			s.want(s.pay("k1"), paidBefore)
			if told := s.saw(telemetry.EventConflict); runs != 2 || len(told) != 1 {
				t.Errorf("the handler ran %d times, with the conflicts %v, want 2 and one", runs, told)
			}
			s.wantPayments(1)
		})
	}
}

// A chain of Gin handlers that runs again has none of the errors of the run before. So another
// failure ends it.
func TestJoinedChainOfGinForgetsItsConflict(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.PostgreSQL, serviceParts{engine: []idem.Option{idem.WithConflictRetries(5)}})
	s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
		if s.runs > 1 {
			return errors.New("no connection to the bank")
		}
		_, err := tx.Exec("DO $$ BEGIN RAISE EXCEPTION 'try again' USING ERRCODE = '40001'; END $$")
		_ = c.Error(err)
		return err
	}))
	s.want(s.pay("k1"), answer{status: 500, body: "sorry"})
	if s.runs != 2 {
		t.Errorf("the handler ran %d times, want 2", s.runs)
	}
	s.wantPayments(0)
}
