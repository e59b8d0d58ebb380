// Package idemsql makes an engine with locks and records in the service's own PostgreSQL, MySQL or MariaDB, for services whose handlers
// call other systems:
//
//	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
//	engine, err := idemsql.New(ctx, db, dialect.PostgreSQL)
//
// If the handlers do nothing but write to this database, use sqlstore.Join instead. What they write happens exactly once then.
//
// # What it guarantees
//
// An operation has at most one automatic execution per key through repeats, an outage and a crash, and also through a pause if the
// resource checks the fence, which package fence does in SQL. A completed outcome is replayed. An outcome that cannot be known is surfaced
// as unknown.
//
// It does not hold through a fail-over that loses transactions, a backup that is restored, and a jump of the server's clock. Keep the
// services down for one time to live of a lock before they use a standby that may lack the latest transactions. [idem.Engine.Guarantee]
// says the same as a value, and Require of a policy refuses a start where a route needs more.
//
// # What it costs
//
// No transaction is open while a handler runs. On PostgreSQL a fresh key takes two round trips: one looks, locks and begins, and the other one stores
// the outcome and gives the lock back. On MySQL and MariaDB it takes seven. A repeat takes one. The lock of a dead process stays for its
// time to live, 10 s by default. The engine keeps one connection of the pool for heartbeats.
//
// # What it needs
//
//   - PostgreSQL 13, MySQL 8 or MariaDB 10.6, or later. Any pooler will do.
//   - The tables, which sqlstore.Migrate and idemctl store migrate make, and a user with the rights that idemctl store grants prints.
//   - A table prefix or a schema of its own for each service that shares a database (sqlstore.WithTablePrefix, sqlstore.WithSchema). The locks
//     follow them.
//   - The choice of InDoubt in the policy of each route, because a crash may leave an outcome in doubt.
//   - [idem.Engine.Close] at the end, before the database is closed. It waits for handlers and gives the locks back. Locks of handlers that are
//     left stay for their time to live.
//
// Useful options are sqllock.WithTTL, sqllock.WithHeartbeatPool, sqlstore.WithExpiry, [WithLogger], sealed.Responses, which encrypts the stored
// answers, and all options of package idem. A sweeper leads by a lock of the engine: sweeper.ByLock(engine.Locker(), "payments").
package idemsql
