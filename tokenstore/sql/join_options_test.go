package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
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
	if err := Migrate(t.Context(), p.write, dialect.PostgreSQL, where...); err != nil {
		t.Fatal(err)
	}
	reading := open(t, "pgx", p.dsn)
	var log syncBuffer
	var events []telemetry.EventType
	var closer closed
	engine, err := Join(t.Context(), p.write, dialect.PostgreSQL, where[0], where[1], nil,
		WithReadPool(reading), WithExpiry(time.Hour), WithMigrationWait(time.Minute),
		WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
		WithIsolation(sql.LevelSerializable), WithIdleLimit(90*time.Second), WithTransactionPooler(),
		idem.WithObserver(func(_ context.Context, ev telemetry.Event) { events = append(events, ev.Type) }),
		idem.WithConflictRetries(1), idem.WithStoreTimeout(patience), idem.WithCloser(&closer))
	if err != nil {
		t.Fatalf("Join() = %v, want <nil>", err)
	}
	runs := 0
	var isolation, idle string
	var locks int
	policy := idem.Policy{Name: "pay", AllowGlobalKeys: true}
	op := idem.Operation{Transport: idem.TransportHTTP, Key: "k1", Policy: &policy,
		Fingerprint: func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "pay", "100") }}
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
	if err := Migrate(t.Context(), p.write, dialect.PostgreSQL); err != nil {
		t.Fatal(err)
	}
	engine, err := Join(t.Context(), p.write, dialect.PostgreSQL, WithReadOnly())
	if err != nil {
		t.Fatalf("Join() = %v, want <nil>", err)
	}
	defer engine.Close(t.Context())
	op := idem.Operation{Transport: idem.TransportHTTP, Key: "k1", Policy: &idem.Policy{Name: "pay", AllowGlobalKeys: true},
		Fingerprint: func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "pay", "100") }}
	_, err = engine.Do(t.Context(), op, func(context.Context) (idem.Response, error) {
		t.Error("the handler ran")
		return idem.Response{Status: 201}, nil
	})
	if !errors.Is(err, ErrReadOnly) {
		t.Errorf("Do() = %v, want %v", err, ErrReadOnly)
	}
}

// watching is told of the engine and of its steps.
type watching struct {
	engines, steps, events atomic.Int64
}

func (w *watching) Watch(telemetry.Engine, driver.Store) { w.engines.Add(1) }
func (w *watching) StartStep(ctx context.Context, _ telemetry.StepStart) (context.Context, any) {
	w.steps.Add(1)
	return ctx, nil
}
func (w *watching) EndStep(context.Context, any, telemetry.StepEnd) {}
func (w *watching) Span(any) driver.Span                            { return driver.Span{} }
func (w *watching) Event(context.Context, telemetry.Event)          { w.events.Add(1) }

// The options of the engine and of the store that the test above leaves out.
func TestJoinTakesTheOptionsForLimitsAndKeys(t *testing.T) {
	t.Parallel()
	p := freshPostgres(t)
	p.write.SetMaxOpenConns(2) // one transaction at a time
	if err := Migrate(t.Context(), p.write, dialect.PostgreSQL); err != nil {
		t.Fatal(err)
	}
	secret, err := idem.NewFingerprintKey([]byte("a secret of 32 bytes for a test!"))
	if err != nil {
		t.Fatal(err)
	}
	recorder, long := new(watching), make(chan struct{})
	once := sync.OnceFunc(func() { close(long) })
	join := func(opts ...JoinOption) *idem.Engine {
		engine, err := Join(t.Context(), p.write, dialect.PostgreSQL, append(opts, WithExpiry(0), quiet())...)
		if err != nil {
			t.Fatalf("Join() = %v, want <nil>", err)
		}
		t.Cleanup(func() { _ = engine.Close(context.Background()) })
		return engine
	}
	engine := join(WithSoleProcess(), idem.WithSingleInstance(), idem.WithFingerprintKeys(secret), idem.WithTelemetry(recorder),
		idem.WithLongRunning(time.Millisecond), idem.WithMaxOpenExecutionsPerScope(1), idem.WithLockTimeout(time.Second/4), idem.WithSettleTimeout(time.Second/4),
		idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
			if ev.Type == telemetry.EventLongRunning {
				once()
			}
		}))
	if _, err := Join(t.Context(), p.write, dialect.PostgreSQL, quiet(), idem.WithMaxWaiting(0, 0)); err == nil {
		t.Error("Join() with no duplicate that may wait = <nil>, want the error of the engine")
	}
	scoped := func(scope string) *idem.Policy {
		return &idem.Policy{Name: "pay", Scope: func(context.Context) (string, error) { return scope, nil }}
	}
	do := func(e *idem.Engine, scope string, key idem.Key, h idem.Handler) (idem.Result, error) {
		return e.Do(context.Background(), idem.Operation{Transport: idem.TransportHTTP, Key: key, Policy: scoped(scope),
			Fingerprint: func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "pay", "100") }}, h)
	}
	never := func(context.Context) (idem.Response, error) {
		t.Error("a handler ran that should not")
		return idem.Response{Status: 201}, nil
	}
	refused := func(what string, want idem.Code, err error) {
		t.Helper()
		if refusal, ok := errors.AsType[*idem.Refusal](err); !ok || refusal.Code != want {
			t.Errorf("%s = %v, want %v", what, err, want)
		}
	}
	_, err = do(engine, "a", "k1", func(ctx context.Context) (idem.Response, error) {
		tx, err := Tx(ctx)
		if err != nil {
			return idem.Response{}, err
		}
		<-long
		_, other := do(engine, "a", "k2", never)
		refused("another key of the scope", idem.CodeTooManyOpen, other)
		began := time.Now()
		_, busy := do(engine, "b", "k3", never)
		refused("a payment past the pool", idem.CodeUnavailable, busy)
		if waited := time.Since(began); waited > patience/2 {
			t.Errorf("it waited %v for the transaction, want about a quarter of a second", waited)
		}
		go func() { _, _ = tx.Exec("SELECT pg_sleep(3600)") }()
		wait(t, "the statement of the goroutine runs", func() bool {
			var n int
			err := p.read.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(3600)%' AND state = 'active' AND pid <> pg_backend_pid() AND datname = current_database()").Scan(&n)
			return err == nil && n == 1
		})
		return idem.Response{Status: 201}, nil
	})
	refused("a payment whose goroutine is in a statement at the end of the settle time-out", idem.CodeUnavailable, err)
	pay := func(ctx context.Context) (idem.Response, error) {
		_, err := Tx(ctx)
		return idem.Response{Status: 201}, err
	}
	wait(t, "a repeat pays, when the server has ended the goroutine's statement", func() bool {
		_, err := do(engine, "a", "k1", pay)
		if refusal, ok := errors.AsType[*idem.Refusal](err); err != nil && (!ok || refusal.Code != idem.CodeUnavailable) {
			t.Fatalf("the repeat = %v, want <nil>", err)
		}
		return err == nil
	})
	_, err = do(join(), "a", "k1", never)
	refused("an engine without the fingerprint key", idem.CodeUnavailable, err)
	if res, err := do(engine, "a", "k1", never); err != nil || !res.Replayed {
		t.Errorf("the engine with the fingerprint key = %v, want a replay", err)
	}
	if recorder.engines.Load() != 1 || recorder.steps.Load() == 0 || recorder.events.Load() == 0 {
		t.Errorf("the telemetry was told of %d engines, %d steps and %d events", recorder.engines.Load(), recorder.steps.Load(), recorder.events.Load())
	}
}
