package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// connections is the greatest number of connections of a command to a database.
const connections = 4

// openSQL opens the database of --database. It connects at its first use.
func (a *app) openSQL(o database.Options) (*database.DB, error) {
	o.Connections, o.TLS = connections, a.tlsFiles
	db, err := database.Open(a.database, o)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--database: %w", err)
	}
	if err != nil {
		return nil, usageError{fmt.Errorf("--database: %w", err)}
	}
	return db, nil
}

// sqlOptions are the options of the store in a database.
func (a *app) sqlOptions(db *database.DB, log *slog.Logger) []sqlstore.Option {
	opts := []sqlstore.Option{sqlstore.WithTablePrefix(a.tables), sqlstore.WithLogger(log), sqlstore.WithExpiry(0)}
	if a.schema != "" {
		opts = append(opts, sqlstore.WithSchema(a.schema))
	}
	return append(opts, db.StoreOptions()...)
}

// openDatabase opens the token store in a database. ZooKeeper is for the locks alone.
func (a *app) openDatabase(ctx context.Context, b *backends, n need) (tokenStore, error) {
	log := slog.New(slog.DiscardHandler) // errors are returned
	if a.zookeeper != "" {
		switch err := a.joinEnsemble(ctx, b, n.patience(), log); {
		case err == nil:
		case n.ensemble || isWrongUse(err) || ctx.Err() != nil:
			return nil, err
		default:
			b.noEnsemble = err
		}
	}
	db, err := a.openSQL(database.Options{})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, func() { _ = db.Close() })
	opts := a.sqlOptions(db, log)
	if n.readOnly {
		opts = append(opts, sqlstore.WithReadOnly())
	}
	opening, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	store, err := sqlstore.New(opening, db.Write, db.Dialect, opts...)
	if err != nil {
		return nil, fmt.Errorf("--database: %w", err)
	}
	b.closers = append(b.closers, func() { _ = store.Close() })
	// The process that owns a file of SQLite knows its transactions by itself, and their open
	// records are never committed.
	if db.Dialect != sqlstore.SQLite() {
		if b.joined, err = store.Joined(); err != nil {
			return nil, fmt.Errorf("--database: %w", err)
		}
	}
	return sqlTools{store}, nil
}

// notHeld returns errNotAcquired if an attempt of the key runs in a joined transaction.
func (b *backends) notHeld(ctx context.Context, id driver.KeyID) error {
	if b.joined == nil {
		return nil
	}
	held, err := b.joined.Held(ctx, id)
	if err == nil && held {
		err = fmt.Errorf("a transaction holds key ID %s: its attempt runs: %w", id, errNotAcquired)
	}
	return err
}

// place names where the token store is, for messages.
func (b *backends) place() string {
	if b.redis != nil {
		return "Redis"
	}
	return "database"
}

// sqlTools is the token store in a database.
type sqlTools struct{ *sqlstore.Store }

// AcceptLoss implements tokenStore. The store notices no loss.
func (s sqlTools) AcceptLoss(context.Context) (int, error) { return 0, nil }
