package idemsql

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"

	"github.com/idemkeeper/idemkeeper/engine/internal/parts"
	"github.com/idemkeeper/idemkeeper/idem"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Option configures [New]. Every [idem.Option], [sqlstore.Option] and [sqllock.Option] is one, and so are [WithLogger] and
// sealed.Responses.
type Option = idem.SetupOption

type logger struct{ log *slog.Logger }

func (logger) ConfiguresEngine() {}

// WithLogger sets the logger of locks, records and engine. [slog.Default] by default.
func WithLogger(log *slog.Logger) Option { return logger{log} }

// New returns an engine in a database of PostgreSQL, MySQL or MariaDB whose tables [sqlstore.Migrate] or idemctl has made. It is
// [sqlstore.New], [sqllock.New] and [idem.New], and its error is that of those. The locks are in the schema of the records and have the same
// table prefix. Closing the engine gives its locks back and closes the store. The database stays open.
func New(ctx context.Context, db *sql.DB, d dialect.Dialect, opts ...Option) (*idem.Engine, error) {
	var common parts.Options
	var ofStore []sqlstore.Option
	var ofLock []sqllock.Option
	for _, opt := range opts {
		switch opt := opt.(type) {
		case sqlstore.Option:
			ofStore = append(ofStore, opt)
		case sqllock.Option:
			ofLock = append(ofLock, opt)
		case logger:
			common.Log, ofStore, ofLock = opt.log, append(ofStore, sqlstore.WithLogger(opt.log)), append(ofLock, sqllock.WithLogger(opt.log))
		default:
			if err := common.Take(opt); err != nil {
				return nil, fmt.Errorf("idemsql: %w", err)
			}
		}
	}
	store, err := sqlstore.New(ctx, db, d, ofStore...)
	if err != nil {
		return nil, err
	}
	schema, prefix := sqlstore.TablesOf(ofStore...)
	locker, err := sqllock.New(ctx, db, d, append([]sqllock.Option{sqllock.WithSchema(schema), sqllock.WithTablePrefix(prefix)}, ofLock...)...)
	if err != nil {
		_ = store.Close()
		return nil, err
	}
	engine, err := common.Engine(ctx, locker, locker, store, idem.WithCloser(store))
	if err != nil {
		_ = store.Close()
	}
	return engine, err
}
