package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/observe"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// operation is a payment past the adapters.
func operation(key idem.Key) idem.Operation {
	return idem.Operation{Transport: idem.TransportHTTP, Key: key, Policy: &idem.Policy{Name: "pay", AllowGlobalKeys: true}, Fingerprint: idem.FingerprintOf("pay", "100")}
}

// logged is a log whose lines can be waited for.
type logged chan string

func (l logged) Write(line []byte) (int, error) { l <- string(line); return len(line), nil }

// TestJoinPaysOnceAndWarnsOfMisuse also has the leak check of TestMain see that closing the engine
// closes the store. The logger of the store is that of the engine.
func TestJoinPaysOnceAndWarnsOfMisuse(t *testing.T) {
	t.Parallel()
	for _, b := range backends()[:3] {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			log := make(logged, 100)
			p := b.migrated(t)
			mustExec(t, p.write, "CREATE TABLE payments (op VARCHAR(64) NOT NULL, amount BIGINT NOT NULL)")
			engine, err := sqlstore.Join(t.Context(), p.write, b.dialect, sqlstore.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
			if err != nil {
				t.Fatalf("Join() = %v, want <nil>", err)
			}
			for len(log) > 0 { // what New says about a server for tests
				<-log
			}
			defer func() {
				if err := engine.Close(context.Background()); err != nil {
					t.Errorf("Close() = %v", err)
				}
			}()
			created := idem.Response{Status: 201, Body: []byte("paid")}
			for _, replayed := range []bool{false, true} {
				res, err := engine.Do(t.Context(), operation("k1"), func(ctx context.Context) (idem.Response, error) {
					tx, err := sqlstore.Tx(ctx)
					if err == nil {
						_, err = tx.ExecContext(ctx, "INSERT INTO payments VALUES ('k1', 100)")
					}
					return created, err
				})
				if err != nil || res.Response.Status != 201 || res.Replayed != replayed {
					t.Errorf("Do() = %+v, %v, want 201, replayed %t", res, err, replayed)
				}
			}
			_, _ = engine.Do(t.Context(), operation("k2"), func(context.Context) (idem.Response, error) { return created, nil })
			select {
			case line := <-log:
				if !strings.Contains(line, idem.ErrNotTaken.Error()) {
					t.Errorf("the first line of the log is %q, want %q", line, idem.ErrNotTaken)
				}
			case <-time.After(patience):
				t.Errorf("the log has nothing, want %q", idem.ErrNotTaken)
			}
		})
	}
}

// The leak check of TestMain also sees that nothing of the store goes on.
func TestJoinTellsWhatItsPartsRefuse(t *testing.T) {
	t.Parallel()
	p := freshPostgres(t)
	if engine, err := sqlstore.Join(t.Context(), p.write, dialect.PostgreSQL); engine != nil || !errors.Is(err, sqlstore.ErrNotMigrated) {
		t.Errorf("Join() without tables = %v, %v, want %v", engine, err, sqlstore.ErrNotMigrated)
	}
	must(t, sqlstore.Migrate(t.Context(), p.write, dialect.PostgreSQL))
	for part, wrong := range map[string]sqlstore.JoinOption{"joined mode": sqlstore.WithIdleLimit(time.Millisecond), "the engine": idem.WithLockTimeout(-1), "a store that runs nothing": sqlstore.WithReadOnly()} {
		if engine, err := sqlstore.Join(t.Context(), p.write, dialect.PostgreSQL, wrong); engine != nil || err == nil {
			t.Errorf("Join() with a wrong option of %s = %v, %v, want an error", part, engine, err)
		}
	}
}

// closed counts how often it was closed.
type closed int

func (c *closed) Close() error { *c++; return nil }

// Join passes each option on to that which has it: the store, joined mode or the engine.
func TestJoinTakesTheOptionsOfAllThree(t *testing.T) {
	t.Parallel()
	p, prefix := freshPostgres(t), sqlstore.WithTablePrefix("own_")
	must(t, sqlstore.Migrate(t.Context(), p.write, dialect.PostgreSQL, prefix))
	var closer closed
	engine, err := sqlstore.Join(t.Context(), p.write, dialect.PostgreSQL, nil, prefix, quiet(), sqlstore.WithIsolation(sql.LevelSerializable), sqlstore.WithTransactionPooler(),
		idem.WithConflictRetries(1), idem.WithCloser(&closer))
	if err != nil {
		t.Fatalf("Join() = %v, want <nil>", err)
	}
	var runs, locks int
	var isolation string
	res, err := engine.Do(t.Context(), operation("k1"), func(ctx context.Context) (idem.Response, error) {
		tx, err := sqlstore.Tx(ctx)
		if runs++; err == nil && runs == 1 {
			_, err = tx.Exec("DO $$ BEGIN RAISE EXCEPTION 'a conflict' USING ERRCODE = '40001'; END $$")
		} else if err == nil {
			// A lock of the transaction cannot be given back before its end.
			err = tx.QueryRow("SELECT current_setting('transaction_isolation'), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"+
				" AND pid = pg_backend_pid() AND pg_advisory_unlock((classid::bigint << 32) | objid::bigint))").Scan(&isolation, &locks)
		}
		return idem.Response{Status: 201}, err
	})
	if err != nil || res.Response.Status != 201 || runs != 2 || isolation != "serializable" || locks != 0 {
		t.Errorf("Do() = %+v, %v, after %d runs with isolation %s and %d locks of the session, want 201 after 2, serializable and 0", res, err, runs, isolation, locks)
	}
	if n := get[int](t, p.write, "SELECT count(*) FROM own_records"); n != 1 {
		t.Errorf("the table of the options has %d records, want 1", n)
	}
	if err := engine.Close(t.Context()); err != nil || closer != 1 {
		t.Errorf("Close() = %v, and closed what belongs to the engine %d times, want once", err, closer)
	}
}

// Without a logger of its own the engine goes by the default logger of the moment, and leaves what its telemetry logs to that.
func TestJoinWithoutALoggerGivesTheEngineNone(t *testing.T) { //nolint:paralleltest // it sets the default logger
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	p := freshPostgres(t)
	must(t, sqlstore.Migrate(t.Context(), p.write, dialect.PostgreSQL))
	misuse := func(opts ...sqlstore.JoinOption) (lines int) {
		engine, err := sqlstore.Join(t.Context(), p.write, dialect.PostgreSQL, opts...)
		must(t, err)
		log := make(logged, 100)
		slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
		_, _ = engine.Do(t.Context(), operation(idem.Key(fmt.Sprint("k", len(opts)))), func(context.Context) (idem.Response, error) { return idem.Response{Status: 201}, nil })
		must(t, engine.Close(t.Context()))
		slog.SetDefault(before)
		for len(log) > 0 {
			if strings.Contains(<-log, "idempotency: misused") {
				lines++
			}
		}
		return lines
	}
	if n := misuse(); n != 1 {
		t.Errorf("the default logger got %d lines, want 1", n)
	}
	own := make(logged, 100)
	if n := misuse(idem.WithTelemetry(observe.New(observe.WithLogger(slog.New(slog.NewTextHandler(own, nil)))))); n != 0 || len(own) == 0 {
		t.Errorf("the default logger got %d lines beside the %d of the telemetry, want none", n, len(own))
	}
}
