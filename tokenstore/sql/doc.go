// Package sqlstore keeps idempotency records in a SQL database: PostgreSQL, MySQL, MariaDB
// or SQLite. The caller opens the database with a driver of its own choice, and names the
// dialect.
package sqlstore
