package pgxstore

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// payWithoutKey is pay for a request without a key. The name is that of its payment.
func (l *ledger) payWithoutKey(name string, more func(ctx context.Context, tx pgx.Tx) (status int, err error)) (idem.Result, error) {
	op := idem.Operation{Transport: idem.TransportHTTP, Policy: &l.policy}
	return l.engine.DoWithoutKey(context.Background(), op, func(ctx context.Context) (idem.Response, error) {
		tx, err := Tx(ctx)
		if err != nil {
			return idem.Response{}, err
		}
		if _, err := tx.Exec(ctx, "INSERT INTO payments VALUES ($1, 100)", name); err != nil {
			return idem.Response{}, err
		}
		status, err := more(ctx, tx)
		return idem.Response{Status: status, Body: []byte("answer")}, err
	})
}

// A request without a key has the transaction of one with a key, and no record.
func TestWithoutKey(t *testing.T) {
	for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
		l := setupIn(t, mode)
		for _, status := range []int{201, 402, 500, 201} {
			res, err := l.payWithoutKey("order", func(ctx context.Context, _ pgx.Tx) (int, error) {
				if left, err := idem.CheckOwner(ctx); err != nil || left != time.Minute {
					t.Errorf("%s: CheckOwner() = %v, %v, want the idle limit", mode, left, err)
				}
				return status, nil
			})
			l.want(res, err, status, false)
		}
		l.wantPayments(2)
		var records int
		if err := l.pool.QueryRow(t.Context(), "SELECT count(*) FROM idem_records").Scan(&records); err != nil || records > 0 {
			t.Errorf("%s: %d records, %v, want none", mode, records, err)
		}
		trips := l.proxy.Count("")
		res, err := l.payWithoutKey("order", answers(201))
		if l.want(res, err, 201, false); mode == "exec" && trips.Seen().Total() != 3 {
			t.Errorf("a payment takes %d requests, want 3: begin, pay, and commit", trips.Seen().Total())
		}
	}
}

// Nothing of a handler that ends its transaction, or goes on after a failed statement, is told as a success.
func TestWithoutKeyHandlerCannotEndItsTransaction(t *testing.T) {
	unknown, undone := idem.CodeOutcomeUnknown, idem.CodeUnavailable
	exec := func(statements ...string) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			for _, statement := range statements {
				_, _ = tx.Exec(ctx, statement)
			}
			return nil
		}
	}
	l := setup(t)
	for name, tt := range map[string]struct {
		end      func(ctx context.Context, tx pgx.Tx) error
		code     idem.Code // after a success
		failure  idem.Code // after a failure; "" is that of the handler
		payments int
	}{
		"Commit":              {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, undone, "", 0},
		"Rollback":            {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, undone, "", 0},
		"a swallowed failure": {exec("SELECT nothing FROM nowhere"), undone, "", 0},
		"COMMIT":              {exec("COMMIT"), unknown, unknown, 1},
		"ROLLBACK":            {exec("ROLLBACK"), unknown, unknown, 0},
		"COMMIT AND CHAIN":    {exec("COMMIT AND CHAIN"), unknown, unknown, 1},
	} {
		for _, status := range []int{201, 402, 500} {
			mustExec(t, l.pool, "TRUNCATE payments")
			res, err := l.payWithoutKey("order", func(ctx context.Context, tx pgx.Tx) (int, error) {
				_ = tt.end(ctx, tx) // swallowed
				return status, nil
			})
			want := tt.code
			if status != 201 {
				want = tt.failure
			}
			if want == "" {
				l.want(res, err, status, false)
			} else {
				l.wantRefused(err, want, nil)
			}
			l.wantPayments(tt.payments)
			if t.Failed() {
				t.Fatalf("%s, answered %d", name, status)
			}
		}
	}
}

// A lost COMMIT is not looked up, and so is the end of a session right before it.
func TestWithoutKeyCommitWithoutAnAnswer(t *testing.T) {
	l := setupIn(t, "exec")
	l.proxy.DropNextReply(testserver.Contains("commit\x00"))
	_, err := l.payWithoutKey("reply", answers(201))
	l.wantRefused(err, idem.CodeOutcomeUnknown, nil)
	l.wantPayments(1)
	l.proxy.DropNextRequest(testserver.Contains("commit\x00"))
	_, err = l.payWithoutKey("request", answers(201))
	l.wantRefused(err, idem.CodeOutcomeUnknown, nil)
	_, err = l.payWithoutKey("killed", func(ctx context.Context, tx pgx.Tx) (int, error) {
		var pid int
		if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			return 0, err
		}
		_, err := l.pool.Exec(ctx, "SELECT pg_terminate_backend($1)", pid)
		return 201, err
	})
	l.wantRefused(err, idem.CodeOutcomeUnknown, nil)
	l.wantPayments(1)
	res, err := l.payWithoutKey("after", answers(201))
	l.want(res, err, 201, false)
	l.wantPayments(2)
}
