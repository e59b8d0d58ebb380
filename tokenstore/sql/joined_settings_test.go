package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// The database keeps an idle transaction for whole seconds at least as long as its limit.
func TestJoinedIdleLimitIsThatOfTheOption(t *testing.T) {
	t.Parallel()
	const limit = 1500 * time.Millisecond
	onEachService(t, serviceParts{joined: []JoinedOption{WithIdleLimit(limit), nil}}, func(s *service) {
		ctx := context.Background()
		begin, err := s.joined.BeginJoined(ctx, idem.NewKeyID("merchant", "k1"), joinedRequest(driver.ClientKey))
		if err != nil || begin.Tx == nil {
			s.Fatalf("BeginJoined() = %+v, %v", begin, err)
		}
		defer begin.Tx.Rollback(ctx)
		if left, err := begin.Tx.Check(ctx); err != nil || left != limit {
			s.Errorf("Check() = %v, %v, want %v", left, err, limit)
		}
		setting, want := map[dialect.Dialect]string{dialect.PostgreSQL: "SHOW idle_in_transaction_session_timeout", dialect.MySQL: "SELECT @@wait_timeout"}[s.backend.dialect],
			map[dialect.Dialect]string{dialect.PostgreSQL: "1500ms", dialect.MySQL: "2"}[s.backend.dialect]
		if setting == "" {
			return
		}
		var got string
		if err := begin.Tx.(*joinedTx).tx().QueryRow(setting).Scan(&got); err != nil || got != want {
			s.Errorf("%s = %q, %v, want %q", setting, got, err, want)
		}
	})
}

// Without its settings a session would commit what follows a deadlock.
func TestJoinedOnMySQLDoesNotBeginWithoutItsSettings(t *testing.T) {
	t.Parallel()
	onMariaDB(t, serviceParts{}, func(s *service) {
		s.joined.guard.(*mysqlGuard).set = "SET SESSION no_such_variable = "
		begin, err := s.joined.BeginJoined(context.Background(), idem.NewKeyID("merchant", "k1"), joinedRequest(driver.ClientKey))
		if begin.Tx != nil || begin.Held || !errors.Is(err, driver.ErrUnavailable) {
			s.Errorf("BeginJoined() = %+v, %v, want %v", begin, err, driver.ErrUnavailable)
		}
		s.wantNothingOpen("after the error")
	})
}

func TestTxOutsideOfAnExecution(t *testing.T) {
	t.Parallel()
	_, tx := Tx(t.Context())
	_, session := SessionOf(t.Context())
	if !errors.Is(tx, idem.ErrNoExecution) || !errors.Is(session, idem.ErrNoExecution) {
		t.Errorf("Tx() = %v, SessionOf() = %v, want %v", tx, session, idem.ErrNoExecution)
	}
}

// The leak check of TestMain also sees that nothing of the store goes on.
func TestJoinTellsWhatItsPartsRefuse(t *testing.T) {
	t.Parallel()
	p := freshPostgres(t)
	if engine, err := Join(t.Context(), p.write, dialect.PostgreSQL); engine != nil || !errors.Is(err, ErrNotMigrated) {
		t.Errorf("Join() without tables = %v, %v, want %v", engine, err, ErrNotMigrated)
	}
	if err := Migrate(t.Context(), p.write, dialect.PostgreSQL); err != nil {
		t.Fatal(err)
	}
	for part, wrong := range map[string]JoinOption{"joined mode": WithIdleLimit(time.Millisecond), "the engine": idem.WithLockTimeout(-1)} {
		if engine, err := Join(t.Context(), p.write, dialect.PostgreSQL, wrong); engine != nil || err == nil {
			t.Errorf("Join() with a wrong option of %s = %v, %v, want an error", part, engine, err)
		}
	}
}

// It uses the default logger, so it is not parallel to other tests.
func TestJoinWarnsOfWhatADeveloperShouldSee(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	for _, c := range []struct {
		ev   telemetry.Event
		want bool
	}{
		{telemetry.Event{Type: telemetry.EventRefused, Code: string(idem.CodeUnavailable)}, true},
		{telemetry.Event{Type: telemetry.EventRefused, Code: string(idem.CodeInternal)}, true},
		{telemetry.Event{Type: telemetry.EventRefused, Code: string(idem.CodeInProgress)}, false},
		{telemetry.Event{Type: telemetry.EventReleased, Code: string(idem.CodeUnavailable)}, false},
		{telemetry.Event{Type: telemetry.EventMisused, Err: driver.ErrEscaped}, true},
		{telemetry.Event{Type: telemetry.EventMisused, Err: driver.ErrSwallowed}, false}, // its refusal warns
	} {
		log.Reset()
		if warn(t.Context(), c.ev); log.Len() > 0 != c.want {
			t.Errorf("warn(%+v) wrote %q, want something: %t", c.ev, log.String(), c.want)
		}
	}
}
