package servers

import (
	"context"
	"log/slog"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
)

// SQLLocks are the locks of package lock/sql in a database.
type SQLLocks struct {
	*sqllock.Inspector
	domain string
	db     *database.DB
	opts   []sqllock.Option
}

// Locks returns the locks in a database, or nil if there are none.
func (d *Database) Locks(ctx context.Context, db *database.DB) *SQLLocks {
	if sqldialect.Of(db.Dialect).File {
		return nil
	}
	opts := []sqllock.Option{sqllock.WithTablePrefix(d.tables), sqllock.WithSchema(d.schema), sqllock.WithLogger(slog.New(slog.DiscardHandler))}
	in, err := sqllock.NewInspector(ctx, db.Read, db.Dialect, opts...)
	if err != nil {
		return nil
	}
	domain, err := in.DomainOf(ctx, driver.KeyID{})
	if err != nil || domain == "" {
		return nil // no service locks here, or this user may not look
	}
	return &SQLLocks{in, domain, db, opts}
}

// Has reports whether a lock domain is that of the locks.
func (l *SQLLocks) Has(domain string) bool { return l != nil && l.domain == domain }

// Open returns a locker.
func (l *SQLLocks) Open(ctx context.Context) (*sqllock.Locker, error) {
	return sqllock.New(ctx, l.db.Write, l.db.Dialect, l.opts...)
}
