// Package sqllock takes exclusive locks in the service's own database: PostgreSQL 13, MySQL 8, MariaDB 10.6, or later versions of
// these. The package is a [driver.Locker] for services whose handlers call other systems, and who have neither
// ZooKeeper nor Redis. No transaction is open while a handler runs. A lock is a row with a time to live, and no state of a session
// or advisory lock, so every pooler will do. The service opens the database with a driver of its own choice.
//
//	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
//	err = sqlstore.Migrate(ctx, db, dialect.PostgreSQL) // or: idemctl store migrate
//	store, err := sqlstore.New(ctx, db, dialect.PostgreSQL)
//	locker, err := sqllock.New(ctx, db, dialect.PostgreSQL)
//	engine, err := idem.New(locker, store)
//
// SQLite is refused, because one process owns its file. Use lock/memory there.
//
// # What is guaranteed
//
// The following holds while the process runs and the database keeps its data.
//
//   - At most one lease of a key is trusted at a time. A lock has a time to live by the server's clock, [WithTTL], and a
//     heartbeat renews it. A lease ends nine tenths of that time after the
//     last acknowledged renewal was sent. Then Done closes, and Check fails. The clock goes
//     on while the machine is suspended (CLOCK_BOOTTIME on Linux). The row expires only later.
//   - A later lease of a key has a greater fence, also after the row was removed.
//   - A failed TryAcquire may leave a lock in the database. The locker removes it in the background.
//     It does the same with a lock whose release was not acknowledged. It never removes
//     another owner's lock.
//   - Every request is one statement, or a few that are each safe by themselves, at any isolation level. What decides is the
//     owner in the row, and never a number of rows. After a deadlock or a serialisation failure the request starts over, a limited number of times.
//   - Heartbeats have a connection that the locker keeps, so handlers that fill the pool do not
//     delay them. Neither does a transaction that has locked one of the rows: the others are renewed, and
//     its lease keeps the trust that it had.
//   - The locks of a dead process stay for the rest of their time to live. Requests for their
//     keys are refused until then. If the server's clock was set back, they stay for one time to live
//     after the next request.
//   - While the database does not answer, calls fail at once with [driver.ErrUnavailable]. One call in
//     a while looks again.
//   - A session that others have left without autocommit takes no lock. On MariaDB the same is true of one with an open transaction.
//
// # What is not guaranteed
//
//   - A fail-over to an asynchronous standby, or a backup that is restored, may lose locks whose
//     holders still trust them, for one time to live at most. Stop the services for that long. The records in the same database are
//     lost together with the locks. With synchronous replication nothing is lost, but PostgreSQL reports success with a warning
//     if somebody cancels its wait for the standby (pg_cancel_backend), and package database/sql does not show the warning. With pgx,
//     pgxstore.WatchStandby counts these warnings, and with [WithUnreplicated] such a lock counts as one without an answer.
//   - A process that is paused past its time to live (SIGSTOP, a suspended machine, a long
//     collection) notices when it runs again. If it writes before it checks, only a resource with a check of the fence
//     refuses the write.
//   - A virtual machine may be paused, migrated or restored from a checkpoint, and may not
//     learn how long this took. It then trusts its leases for so much longer. The same holds
//     for a suspended machine on systems other than Linux, if the monotonic clock stands
//     still.
//   - Rows expire by the server's clock. If it jumps ahead by more than a twentieth
//     of the time to live, locks expire while their leases are trusted. The clock of a
//     promoted standby may be ahead too.
//   - If a TryAcquire was given up, its statement may be applied after the locker has undone it.
//     It then blocks its key for one time to live, without a lease.
//   - Waiters get the lock in no particular order. They ask again every 5 to 250 ms.
//   - A pooler with few connections of its own, all of them in transactions of handlers, delays heartbeats too. See [WithHeartbeatPool].
//   - On MySQL a session that others have left with an open transaction is not noticed. A lock that is taken in it is lost at the next
//     heartbeat.
//
// # Fences and the domain
//
// A fence is the server's time in microseconds, or the last fence of the row plus one, whichever
// is greater. A row stays for a minute after its lock is free, which is longer than any request to take a lock can be under way. Before it is
// removed, its fence is kept in the row of the domain, and the fences of new rows are greater than that. So fences rise also if the clock is set
// back. They rise over a fail-over or a restored backup, unless the clock is behind the lost fences then.
//
// The domain is a UUID in the table of the domain. A database without that table's row gets another one.
//
// # Reading order
//
// locker.go makes a locker, and internal/leasing has the life of a lease. keeper.go takes and gives back locks, in order. heart.go renews
// them, with the statements in postgres.go and mysql.go. clean.go removes rows. offer.go hands a lock to a store in the same PostgreSQL, which takes
// it together with the record (tokenstore/sql/locking.go).
package sqllock
