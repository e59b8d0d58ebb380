// Package pgxstore joins idempotency records to transactions of pgx, for services that use a
// [pgxpool.Pool] and not database/sql. A handler gets a [pgx.Tx] from [Tx].
//
// The protocol, the tables and the guarantees are those of joined mode in package sqlstore. That
// package has no driver of its own, so this one is apart, and only services that import it link
// pgx. One line joins a service:
//
//	engine, err := pgxstore.Join(ctx, pool)
//
// The pool needs 2 connections or more ([pgxpool.Config].MaxConns), because joined transactions
// leave one of them to all other calls.
//
// On PostgreSQL with synchronous replication, a COMMIT that is cancelled while it waits for a
// standby is visible and not replicated. The server says so in a warning, which the service gets
// from OnNotice of its pgx.ConnConfig.
package pgxstore
