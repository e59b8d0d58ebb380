// Package fence lets a ledger in a SQL database refuse a stale holder. It is for PostgreSQL,
// MySQL, MariaDB and SQLite, through database/sql. It links no driver.
//
// A process can be paused in its handler for longer than its session and then wake up. By then
// another process may have the lock and may have paid. The later holder has a higher fencing
// token (Fence in idem.Execution). This package keeps the highest fence of each operation in a
// table and refuses a lower one.
//
// Joined mode (idem.NewJoined) does not need it. There the record and the money are one
// transaction.
//
// # Use
//
// Make the table once, before the first instance starts. A transaction calls [Table.Raise]
// before its first write for an operation:
//
//	fences, err := fence.New(dialect.PostgreSQL)
//	err = fences.Migrate(ctx, db)
//
//	execution, _ := idem.FromContext(ctx)
//	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
//	defer tx.Rollback()
//	if err := fences.Raise(ctx, tx, execution.OperationID, execution.Fence); err != nil {
//		return err // a later holder was there, or the database failed
//	}
//	_, err = tx.ExecContext(ctx, "INSERT INTO payments …")
//	err = tx.Commit()
//
// A resolver calls [Table.Settle] and looks for the payment in the same transaction. After its
// commit the attempt in doubt cannot pay any more, and the answer "not applied" stays true.
//
// # What is guaranteed
//
// Raise inserts the row of the operation if there is none, then locks and reads it, compares,
// and updates it. The lock lasts until the transaction ends. If two holders write at the same
// moment, the second one waits, and then sees the fence of the first. So the fences of an
// operation never fall from one commit to the next.
//
// Commit the transaction also if the ledger refuses the payment itself, for lack of funds for
// example. Otherwise an earlier holder could pay after this one has answered with the refusal.
//
// Fences are comparable within one lock domain. A fence of another domain takes the place of
// the one in the table, and the domain before it is over for the operation. Its fences are
// refused from then on. So if a service goes back to a former lock service, operations that raised
// fences of both are refused for good, unless the former domain was retired before (idemctl store
// retire). Its ensemble gets another domain then.
//
// # Isolation levels
//
// READ COMMITTED fits best. At every other level a stale holder is refused too. Some databases
// report a conflict instead, and the transaction has to start over:
//
//   - PostgreSQL at REPEATABLE READ or SERIALIZABLE
//   - MariaDB with innodb_snapshot_isolation at REPEATABLE READ
//   - SQLite with a deferred transaction, if it has read before
//
// # The table
//
// Its name is "idem_fences" unless [WithName] says otherwise. The file table.sql
// has the columns. It keeps a row for each operation. Delete a row together with its
// operation, and not before every attempt of the operation is over.
package fence
