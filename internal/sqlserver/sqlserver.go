// Package sqlserver recognises the server behind a pool of database/sql. It links no driver.
package sqlserver

import (
	"context"
	"database/sql"
	"strings"
)

// The dialects, by their names.
const (
	PostgreSQL = "PostgreSQL"
	MySQL      = "MySQL" // and MariaDB
	SQLite     = "SQLite"
)

// Of returns the name of a database and that of its dialect. Both are "" if the database does not
// answer, or if it is of another kind. It costs one statement, and two on SQLite.
func Of(ctx context.Context, db *sql.DB) (name, dialect string) {
	var version string
	switch err := db.QueryRowContext(ctx, "SELECT version()").Scan(&version); {
	case err != nil:
		if db.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&version) == nil {
			return SQLite, SQLite
		}
	case strings.HasPrefix(version, "PostgreSQL"):
		return PostgreSQL, PostgreSQL
	case strings.Contains(version, "MariaDB"):
		return "MariaDB", MySQL
	case version != "" && '0' <= version[0] && version[0] <= '9':
		return MySQL, MySQL
	}
	return "", ""
}
