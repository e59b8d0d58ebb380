package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// hindrance keeps the middleware from looking what the handler has done to its transaction. It
// comes last in a handler, and lift takes it away after the answer.
type hindrance struct {
	name string
	slow bool // the middleware gives up only after a second
	// in hinders the connection of a transaction. other is another connection to the database.
	in func(t *testing.T, tx *sql.Tx, other *sql.DB) (lift func())
}

var hindrances = []hindrance{
	{"none", false, func(*testing.T, *sql.Tx, *sql.DB) func() { return func() {} }},
	{"rows left open", false, func(t *testing.T, tx *sql.Tx, _ *sql.DB) func() {
		rows, err := tx.Query("SELECT generate_series(1, 100000)") // and not closed
		if err != nil {
			t.Errorf("Query() = %v", err)
			return func() {}
		}
		rows.Next()
		return func() { _ = rows.Close() }
	}},
	{"a statement cancelled by the handler", false, func(t *testing.T, tx *sql.Tx, _ *sql.DB) func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		if _, err := tx.ExecContext(ctx, "SELECT pg_sleep(60)"); err == nil {
			t.Error("pg_sleep(60) ended within 20 ms")
		}
		return func() {}
	}},
	{"a goroutine in a statement", true, func(t *testing.T, tx *sql.Tx, other *sql.DB) func() {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = tx.Exec("SELECT pg_sleep(60), 'of a goroutine'")
		}()
		wait(t, "the statement runs", func() bool {
			return holds(other, "SELECT count(*) = 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep(60), ''of a goroutine''%' AND pid <> pg_backend_pid() AND datname = current_database()")
		})
		return func() {
			select {
			case <-ended:
			case <-time.After(patience):
				t.Error("the statement of the goroutine goes on after the answer")
			}
		}
	}},
	{"the records locked by others", true, func(t *testing.T, _ *sql.Tx, other *sql.DB) func() {
		lock, err := other.Begin()
		if err != nil {
			t.Error(err)
			return func() {}
		}
		asked := make(chan struct{})
		ended := make(chan struct{})
		go func() { // it waits for the transaction of the handler, and everybody else for it
			defer close(ended)
			close(asked)
			_, _ = lock.Exec("LOCK TABLE idem_records IN ACCESS EXCLUSIVE MODE")
		}()
		<-asked
		wait(t, "the lock is asked for", func() bool {
			return holds(other, "SELECT count(*) > 0 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND relation = 'idem_records'::regclass")
		})
		return func() {
			<-ended
			_ = lock.Rollback()
		}
	}},
}

// escapes are what a handler does to its transaction before it pays on. "pay" is its payment.
var escapes = map[string][]string{
	"nothing":               {"pay"},
	"COMMIT":                {"COMMIT", "pay"},
	"ROLLBACK":              {"ROLLBACK", "pay"},
	"ROLLBACK, BEGIN":       {"ROLLBACK", "BEGIN", "pay"},
	"ROLLBACK; BEGIN":       {"ROLLBACK; BEGIN", "pay"},
	"COMMIT AND CHAIN":      {"COMMIT AND CHAIN", "pay"},
	"ROLLBACK AND CHAIN":    {"ROLLBACK AND CHAIN", "pay"},
	"ROLLBACK, pay, BEGIN":  {"ROLLBACK", "pay", "BEGIN"},
	"ROLLBACK, pay; COMMIT": {"ROLLBACK", "BEGIN", "pay", "COMMIT"},
	"ROLLBACK, lock":        {"ROLLBACK", "BEGIN", "LOCK TABLE idem_records IN EXCLUSIVE MODE", "pay"}, // against its own settlement
}

// slowEscapes leave the connection in each of its states: in the first transaction, in none, in a later one, and in
// a later one beside a committed payment.
var slowEscapes = map[string]bool{"nothing": true, "ROLLBACK": true, "ROLLBACK, BEGIN": true, "ROLLBACK, pay, BEGIN": true}

// A handler ends its transaction by a statement, and the middleware cannot look for the record. It
// must not take that for a rollback, because what the handler wrote may be there.
func TestJoinedEscapeThatCannotBeLookedForIsNoRollback(t *testing.T) {
	t.Parallel()
	for _, h := range hindrances {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := startOn(t, dialect.PostgreSQL, serviceParts{engine: []idem.Option{idem.WithSettleTimeout(time.Second), idem.WithStoreTimeout(time.Second)}})
			for escape, statements := range escapes {
				if escape == "ROLLBACK, pay, BEGIN" && h.name == "a statement cancelled by the handler" {
					continue // nothing is left that could tell, as the documentation says
				}
				if h.slow && !slowEscapes[escape] {
					continue
				}
				for _, status := range statusesAfter(escape) {
					t.Run(escape+"/"+http.StatusText(status), func(t *testing.T) {
						(&escapeTest{service: s, T: t, key: driver.NewNonce().String(), hinder: h.in}).run(statements, status)
					})
				}
			}
			s.wantNothingOpen("at the end")
		})
	}
}

// The handler has committed a payment by itself and still uses the connection, and no other connection is free to
// ask the server. What cannot be found out is no rollback.
func TestJoinedEscapeIsNoRollbackWhileTheServerCannotBeAsked(t *testing.T) {
	t.Parallel()
	for _, h := range hindrances {
		if h.name != "rows left open" && h.name != "a goroutine in a statement" {
			continue
		}
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			s := startOn(t, dialect.PostgreSQL, serviceParts{pool: 2, engine: []idem.Option{idem.WithSettleTimeout(time.Second / 2), idem.WithStoreTimeout(time.Second / 2)}})
			other := open(t, "pgx", s.pools.dsn)
			for _, status := range []int{201, 402, 500} {
				var lift, release func()
				s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
					for _, statement := range []string{"ROLLBACK", "BEGIN", "INSERT INTO payments VALUES ('x', 100)", "COMMIT", "BEGIN"} {
						_, _ = tx.Exec(statement)
					}
					lift = h.in(t, tx, other)
					conn, err := s.pools.write.Conn(context.Background())
					release = func() { _ = conn.Close() }
					c.String(status, "done")
					return err
				}))
				key := fmt.Sprint("k", status)
				a := s.pay(key)
				release()
				lift()
				s.want(a, refused(409, idem.CodeOutcomeUnknown))
				s.with(s.paying(201))
				s.eventually("the outcome is recorded as unknown", func() bool { return s.pay(key).code == string(idem.CodeOutcomeUnknown) })
			}
			s.wantPayments(3)
		})
	}
}

// statusesAfter leaves out most refusals, because they begin with a rollback as failures do.
func statusesAfter(escape string) []int {
	if escape == "nothing" || escape == "ROLLBACK" {
		return []int{201, 402, 500}
	}
	return []int{201, 500}
}

type escapeTest struct {
	*service
	*testing.T
	key    string
	hinder func(t *testing.T, tx *sql.Tx, other *sql.DB) (lift func())
}

func (e *escapeTest) run(statements []string, status int) {
	lift, ran := func() {}, false
	told := len(e.saw(telemetry.EventMisused))
	e.with(e.inTx(func(c *gin.Context, tx *sql.Tx) error {
		ran = true
		for _, statement := range statements {
			if statement == "pay" {
				_ = e.insert(c, tx)
			} else {
				_, _ = tx.Exec(statement)
			}
		}
		lift = e.hinder(e.T, tx, e.pools.read)
		c.String(status, "done")
		return nil
	}))
	first := e.pay(e.key)
	lift()
	if !ran {
		e.T.Fatalf("the handler did not run: %v", first)
	}
	escaped := len(statements) > 1
	switch paid := e.paidTo(e.key); {
	case escaped && paid > 0:
		if first.code != string(idem.CodeOutcomeUnknown) || len(e.saw(telemetry.EventMisused)) == told {
			e.T.Errorf("the handler has paid, and its answer is %v, events %v", first, e.saw(telemetry.EventMisused)[told:])
		}
	case !escaped && status == 500 && first != answer{status: 500, body: "done"}:
		e.T.Errorf("a failure is answered %v", first)
	}
	e.with(e.paying(201))
	var last answer
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if last = e.pay(e.key); last.code != string(idem.CodeInProgress) && last.code != string(idem.CodeUnavailable) {
			break
		}
	}
	if last.code == string(idem.CodeInProgress) || last.code == string(idem.CodeUnavailable) {
		e.T.Errorf("after %v the repeat is never answered, the last time %v", patience, last)
	}
	if paid := e.paidTo(e.key); paid > 1 {
		e.T.Errorf("%d payments, first answer %v, last %v", paid, first, last)
	}
	if !escaped && status == 500 && (last != answer{status: 201, body: "paid"}) {
		e.T.Errorf("after a rollback the repeat got %v, want a payment", last)
	}
}
