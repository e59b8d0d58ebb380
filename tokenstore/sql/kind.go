package sqlstore

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// kinds are the databases. CONTRIBUTING.md says what a new one needs. No other code compares dialects. It
// asks for what a database has.
var kinds = map[dialect.Dialect]*kind{
	dialect.PostgreSQL: postgres,
	dialect.MySQL:      mysql,
	dialect.SQLite:     sqlite,
}

// kind is a database: its SQL, and what it does for the store alone.
type kind struct {
	*sqldialect.Dialect

	// check refuses a database whose settings could lose or mix up records, and notes what the store needs
	// to know of it.
	check func(ctx context.Context, s *Store) error
	// users are those of the database. nil if it has none.
	users *users

	folder string // of its migrations
	// beginMigration and endMigration let one migration run at a time. PostgreSQL and SQLite
	// undo a migration that fails.
	beginMigration, endMigration, undoMigration []string
	// waitAtMost follows beginMigration. It bounds how long a statement waits for a table that others use.
	waitAtMost func(time.Duration) string
	// commentsStay keeps the comments of a statement, because the database stores its text.
	commentsStay bool
	// printedClock is Clock in a program that is older than the database. "" if that is Clock itself.
	printedClock string

	// join readies joined mode. It refuses connections that are not fit for it.
	join func(ctx context.Context, j *Joined) (guard, error)
	// joinsOthers says that joined mode takes sessions past database/sql.
	joinsOthers bool
	// takesLocks says that the store can take the locks of package lock/sql in its own statements.
	takesLocks bool
}

// users are the users of a database, and their rights.
type users struct {
	// lacking returns the rights that the user of the connection does not have, in the order of wanted.
	lacking func(ctx context.Context, q querier, n names, wanted []right) ([]right, error)
	// grantee quotes a user for GRANT.
	grantee func(user string) (string, error)
	// ofSchema is the right on a schema without which those on its tables are void. "" if there is none.
	ofSchema string
}

// kindOf returns the database of a dialect.
func kindOf(d dialect.Dialect) (*kind, error) {
	if k := kinds[d]; k != nil {
		return k, nil
	}
	return nil, errors.New("tokenstore/sql: no dialect: use one of package tokenstore/sql/dialect, such as dialect.PostgreSQL")
}

// guard is what differs between the databases in joined mode. It is safe for concurrent use by
// different transactions.
type guard interface {
	// claim notes that this process works on a key. It returns false if the database is this
	// process's own and another transaction has the key.
	claim(id driver.KeyID) bool
	unclaim(id driver.KeyID)
	// held reports whether a transaction has the key.
	held(ctx context.Context, id driver.KeyID) (bool, error)
	// before readies a connection for BEGIN, and after has it forget that. before reports
	// whether another transaction has the key, if it can tell without waiting. It may have p see the record of the key.
	before(ctx context.Context, t *joinedTx, p *pending) (held bool, err error)
	after(ctx context.Context, t *joinedTx) error
	// begin readies a connection and begins a transaction without a record.
	begin(ctx context.Context, t *joinedTx) error
	// take runs the statement that takes the key. from is nil for an INSERT.
	take(ctx context.Context, t *joinedTx, p *pending, from *driver.Record) (taken, waited bool, err error)
	// escaped looks before a rollback whether the handler has ended the transaction. The error wraps
	// driver.ErrEscaped if what it wrote may be there.
	escaped(ctx context.Context, t *joinedTx) error
	// rollBack rolls back a transaction that is not to be committed. The error wraps driver.ErrEscaped if the
	// database tells that it has kept some of it. The caller ignores any other one and rolls back again.
	rollBack(ctx context.Context, t *joinedTx) error
	// intact is a statement that counts 1 in the transaction without a record, and nothing in another one, as far as
	// the database tells.
	intact(t *joinedTx) (statement string, args []any)
	// completeAndCommit is complete and commit in one round trip. able is false if the session cannot do that, or has not
	// done it because a goroutine of the handler is in a statement. If sent is true, an error is that of COMMIT.
	completeAndCommit(ctx context.Context, t *joinedTx, c *completion) (able, sent bool, err error)
	// complete makes the record completed. The error wraps driver.ErrEscaped or driver.ErrSwallowed
	// if the transaction is not the one that took the key, and nothing is committed. Without a record c is nil, and it
	// only confirms that the transaction is the first one.
	complete(ctx context.Context, t *joinedTx, c *completion) error
	// commit commits in limited time.
	commit(ctx context.Context, t *joinedTx) error
	// undone reports whether an error of COMMIT means that it was rolled back for certain.
	undone(err error) bool
}
