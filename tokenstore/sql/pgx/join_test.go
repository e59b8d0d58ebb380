package pgxstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// closed counts how often it was closed.
type closed int

func (c *closed) Close() error { *c++; return nil }

// Join passes each option on to that which has it: the store, joined mode or the engine.
func TestJoinTakesTheOptionsOfAllThree(t *testing.T) {
	l := setup(t)
	ctx := t.Context()
	mustExec(t, l.pool, "CREATE SCHEMA elsewhere")
	reading := stdlib.OpenDBFromPool(l.pool)
	defer reading.Close()
	where := []sqlstore.Option{sqlstore.WithSchema("elsewhere"), sqlstore.WithTablePrefix("own_")}
	if err := sqlstore.Migrate(ctx, reading, dialect.PostgreSQL, where...); err != nil {
		t.Fatal(err)
	}
	reads := func() int64 { return l.pool.Stat().AcquireCount() }
	before := reads()
	var log bytes.Buffer
	var events []telemetry.EventType
	var closer closed
	engine, err := Join(ctx, l.through.pool, where[0], where[1], nil,
		sqlstore.WithReadPool(reading), sqlstore.WithExpiry(time.Hour), sqlstore.WithMigrationWait(time.Minute),
		sqlstore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
		sqlstore.WithIsolation(sql.LevelSerializable), sqlstore.WithIdleLimit(90*time.Second), sqlstore.WithTransactionPooler(),
		idem.WithObserver(func(_ context.Context, ev telemetry.Event) { events = append(events, ev.Type) }),
		idem.WithConflictRetries(1), idem.WithStoreTimeout(patience), idem.WithCloser(&closer))
	if err != nil {
		t.Fatalf("Join() = %v, want <nil>", err)
	}
	l.engine = engine
	runs := 0
	var isolation, idle string
	var locks int
	pay := func(ctx context.Context, tx pgx.Tx) (int, error) {
		if runs++; runs == 1 {
			_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE EXCEPTION 'a conflict' USING ERRCODE = '40001'; END $$")
			return 0, err
		}
		return 201, errors.Join(tx.QueryRow(ctx, "SHOW transaction_isolation").Scan(&isolation), tx.QueryRow(ctx, "SHOW idle_in_transaction_session_timeout").Scan(&idle),
			// A lock of the transaction cannot be given back before.
			tx.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND pg_advisory_unlock((classid::bigint << 32) | objid::bigint)").Scan(&locks))
	}
	res, err := l.run("k1", pay)
	l.want(res, err, 201, false)
	if runs != 2 || isolation != "serializable" || idle != "90s" || locks != 0 {
		t.Errorf("after %d runs the handler has isolation %s, idle limit %s and %d locks of its session, want 2, serializable, 90s and 0", runs, isolation, idle, locks)
	}
	res, err = l.run("k1", pay)
	l.want(res, err, 201, true)
	if reads() == before || !strings.Contains(log.String(), "fsync") || len(events) == 0 {
		t.Errorf("the read pool was used %d times, the log has %q, and the observer saw %v", reads()-before, log.String(), events)
	}
	var records int
	if err := l.pool.QueryRow(ctx, "SELECT count(*) FROM elsewhere.own_records").Scan(&records); err != nil || records != 1 {
		t.Errorf("the table of the options has %d records, %v, want 1", records, err)
	}
	if err := engine.Close(ctx); err != nil || closer != 1 {
		t.Errorf("Close() = %v, and closed what belongs to the engine %d times, want once", err, closer)
	}
}

// A handler that gives back the lock of its own key is behind no pooler: its session is the same. So the key of
// the next handler that leaves its transaction stays held.
func TestHandlerThatUnlocksIsNoPooler(t *testing.T) {
	l := setup(t)
	for n, status := range []int{201, 402, 500} {
		key := []string{"a", "b", "c"}[n]
		res, err := l.pay(key, func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, err := tx.Exec(ctx, "SELECT pg_advisory_unlock_all()")
			return status, err
		})
		if err != nil || res.Response.Status != status {
			t.Errorf("Do() = %+v, %v, want %d", res, err, status)
		}
		var duplicate error
		_, err = l.run("left-"+key, func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, _ = tx.Exec(ctx, "ROLLBACK")
			_, duplicate = l.pay("left-"+key, answers(201))
			return 201, nil
		})
		l.wantRefused(duplicate, idem.CodeInProgress, nil)
		l.wantRefused(err, idem.CodeOutcomeUnknown, nil)
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

// Only a session that has changed proves a pooler, and from then on no session keeps a lock.
func TestAnotherSessionAfterATransactionIsAPooler(t *testing.T) {
	l := setup(t)
	ctx := t.Context()
	db := stdlib.OpenDBFromPool(l.pool)
	defer db.Close()
	var log bytes.Buffer
	store, err := sqlstore.New(ctx, db, dialect.PostgreSQL, sqlstore.WithExpiry(0), sqlstore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	pooler := transparent{connector{connect(t, l.pool.Config().ConnString(), 3)}, new(atomic.Bool)}
	joined, err := store.JoinedOver(pooler)
	if err != nil {
		t.Fatal(err)
	}
	for n, c := range []struct {
		moved   bool
		noticed bool
		locks   int // left in the sessions
	}{{false, false, 0}, {true, true, 1}, {true, true, 1}, {false, true, 1}} {
		pooler.moved.Store(c.moved)
		begin, err := joined.BeginJoined(ctx, idem.NewKeyID("merchant", idem.Key(rune('a'+n))), driver.JoinedRequest{Route: "pay", Nonce: driver.NewNonce()})
		if err != nil || begin.Tx == nil {
			t.Fatalf("BeginJoined() = %+v, %v, want a transaction", begin, err)
		}
		if err := begin.Tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		var locks int
		if err := l.pool.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").Scan(&locks); err != nil {
			t.Fatal(err)
		}
		if noticed := strings.Contains(log.String(), "a pooler stands between"); noticed != c.noticed || locks > c.locks {
			t.Errorf("after transaction %d the pooler is noticed: %t, and %d locks are left, want %t and at most %d", n, noticed, locks, c.noticed, c.locks)
		}
	}
}
