package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// closed counts how often it was closed.
type closed int

func (c *closed) Close() error { *c++; return nil }

// Join passes each option on to that which has it: the store, joined mode or the engine.
func TestJoinTakesTheOptionsOfAllThree(t *testing.T) {
	t.Parallel()
	p := freshPostgres(t)
	mustExec(t, p.write, "CREATE SCHEMA elsewhere")
	where := []Option{WithSchema("elsewhere"), WithTablePrefix("own_")}
	if err := Migrate(t.Context(), p.write, PostgreSQL(), where...); err != nil {
		t.Fatal(err)
	}
	reading := open(t, "pgx", p.dsn)
	var log syncBuffer
	var events []idem.EventType
	var closer closed
	engine, err := Join(t.Context(), p.write, PostgreSQL(), where[0], where[1], nil,
		WithReadPool(reading), WithExpiry(time.Hour), WithExpiryFailed(func(context.Context, error) {}), WithMigrationWait(time.Minute),
		WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
		WithIsolation(sql.LevelSerializable), WithIdleLimit(90*time.Second), WithTransactionPooler(),
		idem.WithObserver(func(_ context.Context, ev idem.Event) { events = append(events, ev.Type) }),
		idem.WithConflictRetries(1), idem.WithStoreTimeout(patience), idem.WithCloser(&closer))
	if err != nil {
		t.Fatalf("Join() = %v, want <nil>", err)
	}
	runs := 0
	var isolation, idle string
	var locks int
	policy := idem.Policy{Name: "pay", AllowGlobalKeys: true}
	op := idem.Operation{Transport: idem.TransportHTTP, Key: "k1", Policy: &policy,
		Fingerprint: func(v uint8) (idem.Fingerprint, error) { return idem.NewFingerprint(v, "pay", "100") }}
	pay := func(ctx context.Context) (idem.Response, error) {
		tx, err := Tx(ctx)
		if err != nil {
			return idem.Response{}, err
		}
		if runs++; runs == 1 {
			_, err := tx.Exec("DO $$ BEGIN RAISE EXCEPTION 'a conflict' USING ERRCODE = '40001'; END $$")
			return idem.Response{}, err
		}
		err = errors.Join(tx.QueryRow("SHOW transaction_isolation").Scan(&isolation), tx.QueryRow("SHOW idle_in_transaction_session_timeout").Scan(&idle),
			// A lock of the transaction cannot be given back before.
			tx.QueryRow("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND pg_advisory_unlock((classid::bigint << 32) | objid::bigint)").Scan(&locks))
		return idem.Response{Status: 201}, err
	}
	if res, err := engine.Do(t.Context(), op, pay); err != nil || res.Response.Status != 201 || runs != 2 {
		t.Errorf("Do() = %+v, %v, after %d runs, want 201 after the conflict and a second run", res, err, runs)
	}
	if isolation != "serializable" || idle != "90s" || locks != 0 {
		t.Errorf("the handler has isolation %s, idle limit %s and %d locks of its session, want serializable, 90 s and 0", isolation, idle, locks)
	}
	if res, err := engine.Do(t.Context(), op, pay); err != nil || !res.Replayed {
		t.Errorf("Do() of the repeat = %+v, %v, want a replay", res, err)
	}
	var records int
	if err := p.write.QueryRow("SELECT count(*) FROM elsewhere.own_records").Scan(&records); err != nil || records != 1 {
		t.Errorf("the table of the options has %d records, %v, want 1", records, err)
	}
	if reading.Stats().OpenConnections == 0 || !strings.Contains(log.String(), "fsync") || len(events) == 0 {
		t.Errorf("the read pool has %d connections, the log %q, and the observer saw %v", reading.Stats().OpenConnections, log.String(), events)
	}
	if err := engine.Close(t.Context()); err != nil || closer != 1 {
		t.Errorf("Close() = %v, and closed what belongs to the engine %d times, want once", err, closer)
	}
}

// An engine of a store that only reads runs no handler.
func TestJoinOfAStoreThatIsReadOnly(t *testing.T) {
	t.Parallel()
	p := freshPostgres(t)
	if err := Migrate(t.Context(), p.write, PostgreSQL()); err != nil {
		t.Fatal(err)
	}
	engine, err := Join(t.Context(), p.write, PostgreSQL(), WithReadOnly())
	if err != nil {
		t.Fatalf("Join() = %v, want <nil>", err)
	}
	defer engine.Close(t.Context())
	op := idem.Operation{Transport: idem.TransportHTTP, Key: "k1", Policy: &idem.Policy{Name: "pay", AllowGlobalKeys: true},
		Fingerprint: func(v uint8) (idem.Fingerprint, error) { return idem.NewFingerprint(v, "pay", "100") }}
	_, err = engine.Do(t.Context(), op, func(context.Context) (idem.Response, error) {
		t.Error("the handler ran")
		return idem.Response{Status: 201}, nil
	})
	if !errors.Is(err, ErrReadOnly) {
		t.Errorf("Do() = %v, want %v", err, ErrReadOnly)
	}
}
