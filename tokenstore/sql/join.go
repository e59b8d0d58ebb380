package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Join returns an engine whose records commit together with what the handlers write to a database
// of PostgreSQL, MySQL or MariaDB. It is [New], [Store.Joined] and [idem.NewJoined] with their
// defaults, and its error is that of those. Use these three for other settings, for a pool of pgx,
// and for SQLite. Closing the engine closes the store. The database stays open.
//
// Join warns [slog.Default] of requests that were refused as unavailable or internal, with the
// reason, and of handlers that have ended their transaction. [idem.WithObserver] adds other observers.
func Join(ctx context.Context, db *sql.DB, d Dialect, opts ...idem.Option) (*idem.Engine, error) {
	store, err := New(ctx, db, d)
	if err != nil {
		return nil, err
	}
	joined, err := store.Joined()
	if err != nil {
		_ = store.Close()
		return nil, err
	}
	engine, err := idem.NewJoined(joined, append([]idem.Option{idem.WithCloser(store), idem.WithObserver(warn)}, opts...)...)
	if err != nil {
		_ = store.Close()
	}
	return engine, err
}

func warn(ctx context.Context, ev idem.Event) {
	refused := ev.Type == idem.EventRefused && (ev.Code == idem.CodeUnavailable || ev.Code == idem.CodeInternal)
	unknown := ev.Type == idem.EventMisused && !errors.Is(ev.Err, idem.ErrSwallowed) // which is refused as unavailable
	if refused || unknown {
		slog.WarnContext(ctx, "idempotency: "+ev.Type.String(), "route", ev.Route, "err", ev.Err)
	}
}
