package pgxstore

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/idem"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestJoinedWantsAStoreAndAPool(t *testing.T) {
	t.Parallel()
	if _, err := Joined(nil, nil); err == nil {
		t.Error("Joined(nil, nil) succeeds")
	}
	if _, err := Tx(context.Background()); !errors.Is(err, idem.ErrNoExecution) {
		t.Errorf("Tx() outside of an execution = %v, want %v", err, idem.ErrNoExecution)
	}
}

// A handler that asks for the transaction of another driver gets none, so it cannot pay past its record.
func TestTransactionOfAnotherDriverIsRefused(t *testing.T) {
	l := setup(t)
	_, err := l.pay("k1", func(ctx context.Context, _ pgx.Tx) (int, error) {
		_, err := sqlstore.Tx(ctx)
		return 500, err
	})
	if !errors.Is(err, sqlstore.ErrOtherStore) {
		t.Errorf("sqlstore.Tx() in a transaction of pgx = %v, want %v", err, sqlstore.ErrOtherStore)
	}
	db := stdlib.OpenDBFromPool(l.pool)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(3)
	l.engine, err = sqlstore.Join(t.Context(), db, dialect.PostgreSQL)
	must(t, err)
	t.Cleanup(func() { _ = l.engine.Close(context.Background()) })
	if _, err = l.pay("k2", answers(201)); !errors.Is(err, sqlstore.ErrOtherStore) {
		t.Errorf("Tx() in a transaction of database/sql = %v, want %v", err, sqlstore.ErrOtherStore)
	}
	l.wantPayments(0)
}

// A lost connection is an error of BEGIN, and an unreachable server one of the connection. The store
// then says that it is unavailable, and no handler runs.
func TestServerThatIsLostHasNoSession(t *testing.T) {
	l := setup(t)
	s, err := l.through.Connect(t.Context())
	must(t, err)
	l.proxy.Refuse(true)
	l.proxy.Cut()
	if err := s.Begin(t.Context(), sql.LevelDefault); err == nil {
		t.Error("Begin() over a lost connection = <nil>, want an error")
	}
	s.Close(true, func() {})
	l.through.pool.Reset()
	if _, err := l.through.Connect(t.Context()); err == nil {
		t.Error("Connect() without a server = <nil>, want an error")
	}
	l.proxy.Restore()
	res, err := l.pay("k1", answers(201))
	l.want(res, err, 201, false)
	l.wantPayments(1)
}

// The connection ends while the handler runs. The payment is rolled back, and a later request gets a
// connection that works.
func TestConnectionLostInTheHandlerRollsBack(t *testing.T) {
	l := setup(t)
	for _, status := range []int{201, 500} {
		_, err := l.pay("k1", func(context.Context, pgx.Tx) (int, error) {
			l.proxy.Cut()
			return status, nil
		})
		if status == 201 {
			l.wantRefused(err, idem.CodeUnavailable, nil)
		}
		l.wantPayments(0)
	}
	res, err := l.pay("k1", answers(201))
	l.want(res, err, 201, false)
	l.wantPayments(1)
}

// A connection does not go back to the pool if the store cannot tell what is left in it.
func TestBrokenSessionLeavesThePool(t *testing.T) {
	l := setup(t)
	c := connector{l.pool}
	for _, broken := range []bool{false, true} {
		s, err := c.Connect(t.Context())
		must(t, err)
		conn := s.(*session).conn.Conn()
		s.Close(broken, func() {})
		if conn.IsClosed() != broken {
			t.Errorf("Close(broken %t) has the connection closed %t", broken, conn.IsClosed())
		}
	}
}

func TestIsolationThatPostgreSQLDoesNotHave(t *testing.T) {
	l := setup(t)
	s, err := connector{l.pool}.Connect(t.Context())
	must(t, err)
	defer s.Close(false, func() {})
	if err := s.Begin(t.Context(), sql.LevelLinearizable); err == nil {
		t.Errorf("Begin(%v) = <nil>, want an error", sql.LevelLinearizable)
	}
	for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelSnapshot, sql.LevelSerializable} {
		if err := s.Begin(t.Context(), level); err != nil {
			t.Fatalf("Begin(%v) = %v, want <nil>", level, err)
		}
		want := map[sql.IsolationLevel]string{sql.LevelDefault: "read committed", sql.LevelSnapshot: "repeatable read", sql.LevelSerializable: "serializable"}[level]
		var got string
		if err := s.QueryRow(t.Context(), "SHOW transaction_isolation", nil, &got); err != nil || got != want {
			t.Errorf("Begin(%v) has isolation %q, %v, want %q", level, got, err, want)
		}
		end, again := s.Rollback, s.Commit
		if level == sql.LevelSerializable {
			end, again = s.Commit, s.Commit
		}
		if err := end(t.Context()); err != nil {
			t.Errorf("the end of the transaction = %v, want <nil>", err)
		}
		if err := again(t.Context()); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("Commit() after the end = %v, want %v", err, sql.ErrTxDone)
		}
	}
}
