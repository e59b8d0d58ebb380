package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// hindrances keep the middleware from looking what the handler has done to its transaction.
var hindrances = map[string]func(l *ledger, tx pgx.Tx) (lift func()){
	"rows left open": func(l *ledger, tx pgx.Tx) func() {
		rows, err := tx.Query(context.Background(), "SELECT generate_series(1, 100000)")
		if err != nil {
			l.Errorf("Query() = %v", err)
			return func() {}
		}
		rows.Next()
		return rows.Close
	},
	"a statement cancelled by the handler": func(l *ledger, tx pgx.Tx) func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		if _, err := tx.Exec(ctx, "SELECT pg_sleep(60)"); err == nil {
			l.Error("pg_sleep(60) ended within 20 ms")
		}
		return func() {}
	},
	"a goroutine in a statement": func(l *ledger, tx pgx.Tx) func() {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			var nothing any
			_ = tx.QueryRow(context.Background(), "SELECT pg_sleep(60), 'of a goroutine'").Scan(&nothing, &nothing)
		}()
		l.wait("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%''of a goroutine''%' AND pid <> pg_backend_pid() AND datname = current_database()")
		return func() {
			select {
			case <-ended:
			case <-time.After(patience):
				l.Error("the statement of the goroutine goes on after the answer")
			}
		}
	},
}

// wait waits until a query counts something.
func (l *ledger) wait(count string) {
	l.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		var n int
		if err := l.pool.QueryRow(context.Background(), count).Scan(&n); err == nil && n > 0 {
			return
		}
		if time.Now().After(deadline) {
			l.Errorf("never counted anything: %s", count)
			return
		}
	}
}

// A handler ends its transaction by a statement, and the middleware cannot look for the record. It
// must not take that for a rollback, because what the handler wrote may be there. The test of the same name in
// tokenstore/sql has more escapes. Here are those that differ by what the session of pgx tells. No statement is sent
// after a COMMIT or ROLLBACK of its own.
func TestEscapeThatCannotBeLookedForIsNoRollback(t *testing.T) {
	for name, hinder := range hindrances {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := setup(t, idem.WithSettleTimeout(time.Second), idem.WithStoreTimeout(time.Second))
			for _, statements := range [][]string{{"pay"}, {"ROLLBACK; BEGIN", "pay"}, {"ROLLBACK AND CHAIN", "pay"}} {
				for _, status := range []int{201, 402, 500} {
					l.escape(fmt.Sprint(statements, status), statements, hinder, status)
				}
			}
		})
	}
}

func (l *ledger) escape(name string, statements []string, hinder func(*ledger, pgx.Tx) func(), status int) {
	key, lift := driver.NewNonce().String(), func() {}
	_, err := l.run(key, func(ctx context.Context, tx pgx.Tx) (int, error) {
		for _, statement := range statements {
			if statement == "pay" {
				statement = "INSERT INTO payments VALUES ('" + key + "', 100)"
			}
			_, _ = tx.Exec(ctx, statement)
		}
		lift = hinder(l, tx)
		return status, nil
	})
	lift()
	code := idem.Code("")
	if refusal, ok := errors.AsType[*idem.Refusal](err); ok {
		code = refusal.Code
	}
	escaped := len(statements) > 1
	paid := l.paid(key)
	if escaped && paid > 0 && code != idem.CodeOutcomeUnknown || !escaped && status == 500 && err != nil {
		l.Errorf("%s: %d payments, and the answer is %v", name, paid, err)
	}
	var again idem.Result
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		again, err = l.pay(key, answers(201))
		if refusal, ok := errors.AsType[*idem.Refusal](err); !ok || refusal.Code != idem.CodeInProgress && refusal.Code != idem.CodeUnavailable {
			break
		}
	}
	if paid := l.paid(key); paid > 1 || !escaped && status == 500 && (paid != 1 || again.Response.Status != 201) {
		l.Errorf("%s: %d payments after the repeat, which got %v, %v", name, paid, again.Response.Status, err)
	}
}

func (l *ledger) paid(key string) (n int) {
	if err := l.pool.QueryRow(context.Background(), "SELECT count(*) FROM payments WHERE op = $1", key).Scan(&n); err != nil {
		l.Error(err)
	}
	return n
}

// Once the handler has ended its transaction, what it wrote would commit by itself, beside a duplicate
// behind a pooler. So nothing of it is sent.
func TestHandlerThatHasEndedItsTransactionSendsNothingMore(t *testing.T) {
	const pay = "INSERT INTO payments VALUES ('more', 100)"
	calls := map[string]func(ctx context.Context, tx pgx.Tx) error{
		"Exec":     func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, pay); return err },
		"Query":    func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Query(ctx, pay); return err }, //nolint:sqlclosecheck // it has no rows
		"QueryRow": func(ctx context.Context, tx pgx.Tx) error { return tx.QueryRow(ctx, pay+" RETURNING 1").Scan(new(int)) },
		"Begin":    func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Begin(ctx); return err },
		"Prepare":  func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Prepare(ctx, "more", pay); return err },
		"SendBatch": func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(pay)
			return tx.SendBatch(ctx, b).Close()
		},
		"CopyFrom": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"payments"}, []string{"op", "amount"}, pgx.CopyFromRows([][]any{{"more", 100}}))
			return err
		},
	}
	l := setup(t)
	for _, end := range []string{"ROLLBACK", "COMMIT"} {
		for name, call := range calls {
			key := end + name
			_, err := l.pay(key, func(ctx context.Context, tx pgx.Tx) (int, error) {
				nested, err := tx.Begin(ctx)
				if err != nil {
					return 0, err
				}
				_, _ = tx.Exec(ctx, end)
				for of, tx := range map[string]pgx.Tx{"the transaction": tx, "a savepoint": nested} {
					if err := call(ctx, tx); !errors.Is(err, ErrHandlerEnded) {
						t.Errorf("%s after %s, of %s = %v, want %v", name, end, of, err, ErrHandlerEnded)
					}
				}
				return 201, nil
			})
			l.wantRefused(err, idem.CodeOutcomeUnknown, nil)
		}
	}
	l.wantPayments(0)
}
