package servers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/tlsfiles"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// connections is the greatest number of connections of a command to a database.
const connections = 4

// Database has the flags about a token store in SQL.
type Database struct {
	URL string // --database, "" without one

	tables, schema string
	files          tlsfiles.Files
}

// Open opens the database. It connects at its first use.
func (d *Database) Open(o database.Options) (*database.DB, error) {
	o.Connections, o.TLS = connections, d.files
	db, err := database.Open(d.URL, o)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("--database: %w", err)
	}
	if err != nil {
		return nil, cli.UsageError{Err: fmt.Errorf("--database: %w", err)}
	}
	return db, nil
}

// TableOptions say where the tables of the store are.
func (d *Database) TableOptions(log *slog.Logger) []sqlstore.Option {
	opts := []sqlstore.Option{sqlstore.WithTablePrefix(d.tables), sqlstore.WithLogger(log)}
	if d.schema != "" {
		opts = append(opts, sqlstore.WithSchema(d.schema))
	}
	return opts
}

// StoreOptions are the options of the store in a database.
func (d *Database) StoreOptions(db *database.DB, log *slog.Logger) []sqlstore.Option {
	return append(append(d.TableOptions(log), sqlstore.WithExpiry(0)), db.StoreOptions()...)
}

// SQLStore is the token store in a database, as [Store]. It notices no loss of records.
type SQLStore struct{ *sqlstore.Store }

// AcceptLoss implements [Store].
func (SQLStore) AcceptLoss(context.Context) (int, error) { return 0, nil }
