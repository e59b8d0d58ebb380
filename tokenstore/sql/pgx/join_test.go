package pgxstore

import (
	"bytes"
	"context"
	"database/sql"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// closed counts how often it was closed.
type closed int

func (c *closed) Close() error { *c++; return nil }

// Join passes each option on to that which has it: the store, joined mode or the engine.
func TestJoinTakesTheOptionsOfAllThree(t *testing.T) {
	l := setup(t)
	prefix := sqlstore.WithTablePrefix("own_")
	db := stdlib.OpenDBFromPool(l.pool)
	defer db.Close()
	must(t, sqlstore.Migrate(t.Context(), db, dialect.PostgreSQL, prefix))
	var closer closed
	engine, err := Join(t.Context(), l.through.pool, nil, prefix, sqlstore.WithLogger(slog.New(slog.DiscardHandler)), sqlstore.WithIsolation(sql.LevelSerializable),
		idem.WithConflictRetries(1), idem.WithCloser(&closer))
	if err != nil {
		t.Fatalf("Join() = %v, want <nil>", err)
	}
	l.engine = engine
	runs, isolation := 0, ""
	res, err := l.pay("k1", func(ctx context.Context, tx pgx.Tx) (int, error) {
		if runs++; runs == 1 {
			_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE EXCEPTION 'a conflict' USING ERRCODE = '40001'; END $$")
			return 0, err
		}
		return 201, tx.QueryRow(ctx, "SHOW transaction_isolation").Scan(&isolation)
	})
	l.want(res, err, 201, false)
	if runs != 2 || isolation != "serializable" {
		t.Errorf("after %d runs the handler has isolation %s, want 2 and serializable", runs, isolation)
	}
	l.wantPayments(1)
	var records int
	if err := l.pool.QueryRow(t.Context(), "SELECT count(*) FROM own_records").Scan(&records); err != nil || records != 1 {
		t.Errorf("the table of the options has %d records, %v, want 1", records, err)
	}
	if err := engine.Close(t.Context()); err != nil || closer != 1 {
		t.Errorf("Close() = %v, and closed what belongs to the engine %d times, want once", err, closer)
	}
}

// transparent stands for a pooler that gives the client the number of a real session. The session of the
// second connection and later ones is another one after the transaction.
type transparent struct {
	connector
	moved *atomic.Bool
}

func (c transparent) Connect(ctx context.Context) (sqlstore.Session, error) {
	s, err := c.connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &movingSession{s.(*session), c}, nil
}

// movingSession sends what follows the transaction to another session, as a pooler of transactions does.
type movingSession struct {
	*session
	pooler transparent
}

func (s *movingSession) Exec(ctx context.Context, statement string, args ...any) error {
	if !s.pooler.moved.Load() {
		return s.session.Exec(ctx, statement, args...)
	}
	other, err := s.pooler.connector.Connect(ctx)
	if err != nil {
		return err
	}
	defer other.Close(false, func() {})
	return other.Exec(ctx, statement, args...)
}

// countedConnector notes the calls that send something.
type countedConnector struct {
	connector
	sent *[]string
}

func (c countedConnector) Connect(ctx context.Context) (sqlstore.Session, error) {
	s, err := c.connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &countedSession{s.(*session), c.sent}, nil
}

type countedSession struct {
	*session
	sent *[]string
}

func (s *countedSession) Begin(ctx context.Context, level sql.IsolationLevel) error {
	*s.sent = append(*s.sent, "Begin")
	return s.session.Begin(ctx, level)
}

func (s *countedSession) BeginRow(ctx context.Context, level sql.IsolationLevel, statement string, args []any, to ...any) error {
	*s.sent = append(*s.sent, "BeginRow")
	return s.session.BeginRow(ctx, level, statement, args, to...)
}

func (s *countedSession) RowCommit(ctx context.Context, statement string, args []any, to ...any) (bool, error) {
	*s.sent = append(*s.sent, "RowCommit")
	return s.session.RowCommit(ctx, statement, args, to...)
}

func (s *countedSession) Exec(ctx context.Context, statement string, args ...any) error {
	*s.sent = append(*s.sent, statement)
	return s.session.Exec(ctx, statement, args...)
}

// The middleware itself takes two round trips: one with BEGIN and one with COMMIT.
func TestPaymentTakesTwoRoundTrips(t *testing.T) {
	l := setup(t)
	ctx := t.Context()
	db := stdlib.OpenDBFromPool(l.pool)
	defer db.Close()
	store, err := sqlstore.New(ctx, db, dialect.PostgreSQL, sqlstore.WithExpiry(0), sqlstore.WithLogger(slog.New(slog.DiscardHandler)))
	must(t, err)
	defer store.Close()
	var sent []string
	joined, err := store.JoinedOver(countedConnector{connector{l.pool}, &sent})
	must(t, err)
	begin, err := joined.BeginJoined(ctx, idem.NewKeyID("merchant", "k1"), driver.JoinedRequest{Route: "pay", Nonce: driver.NewNonce()})
	if err != nil || begin.Tx == nil {
		t.Fatalf("BeginJoined() = %+v, %v, want a transaction", begin, err)
	}
	a := begin.Record.Attempt
	must(t, begin.Tx.Commit(ctx, driver.Settlement{Attempt: a, ID: a.Nonce, State: driver.StateCompleted, Response: &driver.Response{Status: 201}}))
	if want := []string{"BeginRow", "RowCommit"}; !slices.Equal(sent, want) {
		t.Errorf("a payment sends %q, want %q", sent, want)
	}
}

// Only a session that has changed proves a pooler, and from then on no session keeps a lock.
func TestAnotherSessionAfterATransactionIsAPooler(t *testing.T) {
	l := setup(t)
	ctx := t.Context()
	db := stdlib.OpenDBFromPool(l.pool)
	defer db.Close()
	var log bytes.Buffer
	store, err := sqlstore.New(ctx, db, dialect.PostgreSQL, sqlstore.WithExpiry(0), sqlstore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	must(t, err)
	defer store.Close()
	pooler := transparent{connector{connect(t, l.pool.Config().ConnString(), 3)}, new(atomic.Bool)}
	joined, err := store.JoinedOver(pooler)
	must(t, err)
	for n, c := range []struct {
		moved   bool
		noticed int
		locks   int // left in the sessions
	}{{false, 0, 0}, {true, 1, 1}, {true, 1, 1}, {false, 1, 1}} {
		pooler.moved.Store(c.moved)
		begin, err := joined.BeginJoined(ctx, idem.NewKeyID("merchant", idem.Key(rune('a'+n))), driver.JoinedRequest{Route: "pay", Nonce: driver.NewNonce()})
		if err != nil || begin.Tx == nil {
			t.Fatalf("BeginJoined() = %+v, %v, want a transaction", begin, err)
		}
		must(t, begin.Tx.Rollback(ctx))
		var locks int
		must(t, l.pool.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").Scan(&locks))
		if noticed := strings.Count(log.String(), "a pooler stands between"); noticed != c.noticed || locks > c.locks {
			t.Errorf("after transaction %d the pooler was noticed %d times, and %d locks are left, want %d and at most %d", n, noticed, locks, c.noticed, c.locks)
		}
	}
}
