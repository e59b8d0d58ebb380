package pgxstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestMain(m *testing.M) {
	testserver.ParallelTests(8) // most of them wait for a server
	goleak.VerifyTestMain(testserver.M{M: m})
}

// patience bounds what a test waits for.
const patience = 30 * time.Second

var databases atomic.Int64

// ledger is an engine on a database of its own, with a table of payments.
type ledger struct {
	*testing.T
	pool    *pgxpool.Pool // past the proxy
	proxy   *testserver.Proxy
	through connector // of the engine, through the proxy
	engine  *idem.Engine
	policy  idem.Policy
}

func setup(t *testing.T, opts ...idem.Option) *ledger {
	t.Helper()
	return setupIn(t, "cache_statement", opts...)
}

// setupIn is setup with a mode of pgx in which it sends statements.
func setupIn(t *testing.T, mode string, opts ...idem.Option) *ledger {
	t.Helper()
	ctx := context.Background()
	admin := connect(t, testserver.SharedPostgres(t), 2)
	name := fmt.Sprintf("idem_pgx_%d_%d", os.Getpid(), databases.Add(1))
	mustExec(t, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() { mustExec(t, admin, "DROP DATABASE "+name+" WITH (FORCE)") })
	u, err := url.Parse(testserver.SharedPostgres(t))
	must(t, err)
	u.Path = "/" + name
	l := &ledger{T: t, pool: connect(t, u.String(), 4), policy: idem.Policy{Name: "POST /pay", AllowGlobalKeys: true}}
	l.proxy = testserver.StartTCPProxy(t, u.Host)
	u.Host = l.proxy.Addr()
	query := u.Query()
	query.Set("default_query_exec_mode", mode)
	u.RawQuery = query.Encode()
	joinedPool := connect(t, u.String(), 6)
	l.through = connector{joinedPool}
	db := stdlib.OpenDBFromPool(joinedPool)
	t.Cleanup(func() { _ = db.Close() })
	must(t, sqlstore.Migrate(ctx, db, dialect.PostgreSQL))
	mustExec(t, l.pool, "CREATE TABLE payments (op text NOT NULL, amount bigint NOT NULL)")
	store, err := sqlstore.New(ctx, db, dialect.PostgreSQL, sqlstore.WithLogger(slog.New(slog.DiscardHandler)))
	must(t, err)
	t.Cleanup(func() { _ = store.Close() })
	joined, err := Joined(store, joinedPool)
	must(t, err)
	l.engine, err = idem.NewJoined(joined, append([]idem.Option{idem.WithStoreTimeout(patience), idem.WithLockTimeout(patience)}, opts...)...)
	must(t, err)
	t.Cleanup(func() { _ = l.engine.Close(ctx) })
	return l
}

func connect(t *testing.T, dsn string, most int32) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	must(t, err)
	cfg.MaxConns = most
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// must ends a test whose preparation has failed.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustExec(t *testing.T, pool *pgxpool.Pool, statement string) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// pay runs a handler that writes a payment and then does more.
func (l *ledger) pay(key string, more func(ctx context.Context, tx pgx.Tx) (status int, err error)) (idem.Result, error) {
	return l.run(key, func(ctx context.Context, tx pgx.Tx) (int, error) {
		if _, err := tx.Exec(ctx, "INSERT INTO payments VALUES ($1, 100)", key); err != nil {
			return 0, err
		}
		return more(ctx, tx)
	})
}

// run runs a handler.
func (l *ledger) run(key string, handle func(ctx context.Context, tx pgx.Tx) (status int, err error)) (idem.Result, error) {
	fingerprint := func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "POST /pay", "100") }
	op := idem.Operation{Transport: idem.TransportHTTP, Key: idem.Key(key), Policy: &l.policy, Fingerprint: fingerprint}
	return l.engine.Do(context.Background(), op, func(ctx context.Context) (idem.Response, error) {
		tx, err := Tx(ctx)
		if err != nil {
			return idem.Response{}, err
		}
		status, err := handle(ctx, tx)
		return idem.Response{Status: status, Body: []byte("answer")}, err
	})
}

func answers(status int) func(context.Context, pgx.Tx) (int, error) {
	return func(context.Context, pgx.Tx) (int, error) { return status, nil }
}

func (l *ledger) want(res idem.Result, err error, status int, replayed bool) {
	l.Helper()
	if err != nil || res.Response.Status != status || res.Replayed != replayed {
		l.Errorf("Do() = %d replayed %t, %v, want %d replayed %t", res.Response.Status, res.Replayed, err, status, replayed)
	}
}

func (l *ledger) wantRefused(err error, code idem.Code, cause error) {
	l.Helper()
	if refusal, ok := errors.AsType[*idem.Refusal](err); !ok || refusal.Code != code || cause != nil && !errors.Is(err, cause) {
		l.Errorf("Do() = %v, want refusal %s because of %v", err, code, cause)
	}
}

func (l *ledger) wantPayments(want int) {
	l.Helper()
	var n int
	if err := l.pool.QueryRow(context.Background(), "SELECT count(*) FROM payments").Scan(&n); err != nil || n != want {
		l.Errorf("the ledger has %d payments, %v, want %d", n, err, want)
	}
}

func TestPaymentCommitsWithItsRecord(t *testing.T) {
	l := setup(t)
	for i, c := range []struct {
		key      string
		answer   int // of the handler
		want     int
		replayed bool
		payments int
	}{
		{"paid", 201, 201, false, 1}, {"paid", 500, 201, true, 1},
		{"refused", 402, 402, false, 1}, {"refused", 201, 402, true, 1},
		{"failed", 500, 500, false, 1}, {"failed", 201, 201, false, 2},
		{"kept", 402, 402, false, 3},
	} {
		res, err := l.pay(c.key, func(ctx context.Context, _ pgx.Tx) (int, error) {
			if status, err := l.engine.Status(ctx, "", idem.Key(c.key), &l.policy); err != nil || status.State != driver.StatePending {
				t.Errorf("step %d: Status() = %v, %v, want pending", i, status.State, err)
			}
			if left, err := idem.CheckOwner(ctx); err != nil || left != time.Minute {
				t.Errorf("step %d: CheckOwner() = %v, %v, want the idle limit", i, left, err)
			}
			if c.key == "kept" {
				idem.KeepWrites(ctx)
			}
			return c.answer, nil
		})
		l.want(res, err, c.want, c.replayed)
		l.wantPayments(c.payments)
	}
}

func TestHandlerCannotEndItsTransaction(t *testing.T) {
	unknown, undone := idem.CodeOutcomeUnknown, idem.CodeUnavailable
	for name, tt := range map[string]struct {
		end  func(ctx context.Context, tx pgx.Tx) error
		code idem.Code
	}{
		"Commit":   {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, undone},
		"Rollback": {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, undone},
		"COMMIT":   {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "COMMIT"); return err }, unknown},
		"ROLLBACK": {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "ROLLBACK"); return err }, unknown},
		"ROLLBACK and Rollback": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "ROLLBACK")
			return errors.Join(err, tx.Rollback(ctx))
		}, unknown},
		"Commit and Rollback": {func(ctx context.Context, tx pgx.Tx) error { // handlers often defer a Rollback
			err := errors.Join(tx.Commit(ctx), tx.Rollback(ctx))
			if !errors.Is(err, ErrHandlerEnded) || !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("Commit() and then Rollback() = %v, want %v and %v", err, ErrHandlerEnded, pgx.ErrTxClosed)
			}
			return err
		}, undone},
		"a swallowed failure": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT nothing FROM nowhere")
			return err
		}, undone},
	} {
		t.Run(name, func(t *testing.T) {
			l := setup(t)
			_, err := l.pay("k1", func(ctx context.Context, tx pgx.Tx) (int, error) {
				_ = tt.end(ctx, tx) // swallowed
				return 201, nil
			})
			l.wantRefused(err, tt.code, nil)
			l.wantPayments(0)
			if tt.code == unknown {
				_, err := l.pay("k1", answers(201))
				l.wantRefused(err, unknown, nil)
				return
			}
			res, err := l.pay("k1", answers(201))
			l.want(res, err, 201, false)
			l.wantPayments(1)
		})
	}
}

func TestSavepointsOfTheHandlerWork(t *testing.T) {
	l := setup(t)
	res, err := l.pay("k1", func(ctx context.Context, tx pgx.Tx) (int, error) {
		nested, err := tx.Begin(ctx)
		if err != nil {
			return 0, err
		}
		_, failed := nested.Exec(ctx, "INSERT INTO nowhere VALUES (1)")
		if failed == nil {
			t.Error("INSERT INTO nowhere = <nil>, want an error")
		}
		return 201, nested.Rollback(ctx)
	})
	l.want(res, err, 201, false)
	l.wantPayments(1)
}

// What a handler writes by any method of its transaction commits with the record.
func TestEveryMethodOfTheTransaction(t *testing.T) {
	l := setup(t)
	want := 0
	for name, write := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"a savepoint that is released": func(ctx context.Context, tx pgx.Tx) error {
			nested, err := tx.Begin(ctx)
			if err == nil {
				_, err = nested.Exec(ctx, "INSERT INTO payments VALUES ('by a savepoint', 1)")
			}
			return cmp.Or(err, nested.Commit(ctx))
		},
		"a prepared statement": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Prepare(ctx, "pays", "INSERT INTO payments VALUES ($1, 1)")
			if err == nil {
				_, err = tx.Exec(ctx, "pays", "by a prepared statement")
			}
			return err
		},
		"a copy": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"payments"}, []string{"op", "amount"}, pgx.CopyFromRows([][]any{{"by a copy", 1}}))
			return err
		},
		"a batch": func(ctx context.Context, tx pgx.Tx) error {
			var b pgx.Batch
			b.Queue("INSERT INTO payments VALUES ('by a batch', 1)")
			return tx.SendBatch(ctx, &b).Close()
		},
		"rows that are read to their end": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "INSERT INTO payments VALUES ('by a query', 1) RETURNING op")
			if err == nil {
				_, err = pgx.CollectRows(rows, pgx.RowTo[string])
			}
			return err
		},
		"a row": func(ctx context.Context, tx pgx.Tx) error {
			var none string
			if err := tx.QueryRow(ctx, "SELECT op FROM payments WHERE false").Scan(&none); !errors.Is(err, pgx.ErrNoRows) {
				return fmt.Errorf("a row that is not there: %w", err)
			}
			return tx.QueryRow(ctx, "INSERT INTO payments VALUES ('by a row', 1) RETURNING op").Scan(&none)
		},
	} {
		res, err := l.run(name, func(ctx context.Context, tx pgx.Tx) (int, error) { return 201, write(ctx, tx) })
		l.want(res, err, 201, false)
		want++
		l.wantPayments(want)
	}
}

// COMMIT goes with the statement that completes the record. In these modes the proxy sees its text.
func TestCommitWithoutAnAnswerIsProbed(t *testing.T) {
	for _, mode := range []string{"exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			l := setupIn(t, mode)
			l.proxy.DropNextReply(testserver.Contains("commit\x00"))
			res, err := l.pay("k1", answers(201))
			l.want(res, err, 201, false)
			l.proxy.DropNextRequest(testserver.Contains("commit\x00"))
			_, err = l.pay("k2", answers(201))
			l.wantRefused(err, idem.CodeUnavailable, driver.ErrRolledBack)
			l.wantPayments(1)
			res, err = l.pay("k2", answers(201))
			l.want(res, err, 201, false)
			l.wantPayments(2)
		})
	}
}

// In every mode of pgx a payment commits with its record, and one without its record does not.
func TestEveryModeOfPgx(t *testing.T) {
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l := setupIn(t, mode)
			for _, replayed := range []bool{false, true} {
				res, err := l.pay("k1", answers(201))
				l.want(res, err, 201, replayed)
			}
			for i, statement := range []string{"DELETE FROM idem_records", "ROLLBACK; BEGIN; INSERT INTO payments VALUES ('escaped', 100)", "INSERT INTO nowhere VALUES (1)"} {
				_, err := l.run(fmt.Sprintf("k%d", 2+i), func(ctx context.Context, tx pgx.Tx) (int, error) {
					_, _ = tx.Exec(ctx, statement)
					return 201, nil
				})
				if err == nil {
					t.Errorf("after %s: Do() = <nil>, want a refusal", statement)
				}
				l.wantPayments(1)
			}
			_, err := l.pay("k9", answers(500))
			if err != nil {
				t.Errorf("Do() = %v", err)
			}
			l.wantPayments(1)
			res, err := l.pay("k9", answers(201))
			l.want(res, err, 201, false)
			l.wantPayments(2)
		})
	}
}

func TestDuplicatesAtOncePayOnce(t *testing.T) {
	l := setup(t)
	l.policy.DuplicateWait = patience
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			res, err := l.pay(fmt.Sprintf("k%d", i%10), answers(201))
			if err != nil || res.Response.Status != 201 {
				t.Errorf("Do() = %+v, %v, want 201", res, err)
			}
		})
	}
	all.Wait()
	l.wantPayments(10)
}

func TestPoolOfOneIsRefused(t *testing.T) {
	l := setup(t)
	if _, err := Join(t.Context(), connect(t, l.pool.Config().ConnString(), 1)); err == nil || !strings.Contains(err.Error(), "2 connections") {
		t.Errorf("Join() on a pool of one = %v, want a refusal with the reason", err)
	}
}
