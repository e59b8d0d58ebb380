package sqlstore_test

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
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// TestJoinedConflictOfTwoPaymentsRunsOneAgain has two payments that only one balance covers. Each of their transactions
// reads what the other one writes.
func TestJoinedConflictOfTwoPaymentsRunsOneAgain(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		s := startService(t, b, serviceParts{joined: []sqlstore.JoinedOption{sqlstore.WithIsolation(sql.LevelSerializable)},
			engine: []idem.Option{idem.WithConflictRetries(3)}})
		mustExec(t, s.pools.write, "CREATE TABLE accounts (id INT PRIMARY KEY, n INT NOT NULL)")
		mustExec(t, s.pools.write, "INSERT INTO accounts VALUES (1, 50), (2, 50)")
		var both sync.WaitGroup
		both.Add(2)
		var ran sync.Map
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			var sum int
			err := tx.QueryRow("SELECT sum(n) FROM accounts").Scan(&sum)
			if _, again := ran.LoadOrStore(c.Query("account"), true); !again {
				both.Done()
				both.Wait()
			}
			if err == nil && sum < 100 {
				c.String(http.StatusPaymentRequired, "no funds")
				return nil
			}
			if err == nil {
				_, err = tx.Exec("UPDATE accounts SET n = n - 100 WHERE id = " + c.Query("account"))
			}
			if err == nil {
				err = s.insert(c, tx) // a conflict may show here too
			}
			if err != nil {
				_ = c.Error(err)
				return err
			}
			c.String(201, "paid")
			return nil
		}))
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
			s := startOn(t, dialect.PostgreSQL, serviceParts{joined: []sqlstore.JoinedOption{sqlstore.WithIsolation(sql.LevelSerializable)},
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

// Payments under different keys have nothing in common but a page of an index. A look at the record before its INSERT would
// make each of them depend on those that begin beside it.
func TestJoinedSerializablePaymentsWithDifferentKeysDoNotConflict(t *testing.T) {
	t.Parallel()
	for _, b := range []backend{backends()[0], pipelined} {
		b.run(t, func(t *testing.T, b backend) {
			s := startService(t, b, serviceParts{joined: []sqlstore.JoinedOption{sqlstore.WithIsolation(sql.LevelSerializable)}})
			first, second := s.started("k1"), s.started("k2")
			s.want(s.pay("k3"), paid)
			s.want(first(), paid)
			s.want(second(), paid)
			for _, key := range []string{"k1", "k2", "k3"} {
				s.want(s.pay(key), paidBefore)
			}
			s.wantNothingOpen("after the repeats")
		})
	}
}
