package sqldialect

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Mismatch returns an error that wraps [dialect.ErrWrong] if the database is known to be of another dialect.
// Some statements work in several dialects, and locks do not.
func (d *Dialect) Mismatch(ctx context.Context, db *sql.DB) error {
	if server, use := serverOf(ctx, db); use != nil && use != d {
		return fmt.Errorf("%w: it is %s, and the database is %s: use dialect.%s", dialect.ErrWrong, d.Name, server, use.Name)
	}
	return nil
}

// serverOf returns the name of a database and its dialect. The dialect is nil if the database does not
// answer, or if it is of another kind. It costs one statement, and two on SQLite.
func serverOf(ctx context.Context, db *sql.DB) (name string, d *Dialect) {
	answers := map[string]string{}
	for _, d := range all {
		answer, asked := answers[d.question]
		if !asked {
			_ = db.QueryRowContext(ctx, d.question).Scan(&answer) // another database fails
			answers[d.question] = answer
		}
		if answer == "" {
			continue
		}
		if name := d.server(answer); name != "" {
			return name, d
		}
	}
	return "", nil
}
