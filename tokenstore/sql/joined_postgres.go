package sqlstore

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// postgresGuard is the [guard] of PostgreSQL.
//
// A transaction that takes a key also takes an advisory lock for it, in the same statement. So
// a duplicate need not wait to learn that the key is taken. The primary key decides, and the
// column guard refuses the commit of a pending record.
//
// The lock is one of the session. A handler that ends the transaction by itself keeps it, and
// no duplicate starts until the outcome is recorded as unknown. The statement that completes the
// record also unlocks, so the usual request needs no statement for that. A session behind a pooler
// of transactions has no locks of its own, so there the lock is one of the transaction.
type postgresGuard struct {
	joined *Joined
	keys   int64  // tells the advisory locks of this table from those of others
	insert string // takes a key without a record
}

// postgresLock is the state of a transaction: whether its session has the lock.
type postgresLock uint8

const (
	lockFree postgresLock = iota
	lockUnsure
	lockHeld
)

func newPostgresGuard(j *Joined) guard {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "idemkeeper records %d", j.recordsTable) // never fails
	g := &postgresGuard{joined: j, keys: int64(h.Sum64())}
	takes, frees := "pg_try_advisory_lock(?::bigint)", " RETURNING pg_advisory_unlock(?::bigint)"
	if j.pooler {
		takes, frees = "pg_try_advisory_xact_lock(?::bigint)", " RETURNING ?::bigint IS NOT NULL"
	}
	// It never waits. The server reads the time-out when the transaction is idle, so any of its
	// statements can set it.
	takes += " AND set_config('idle_in_transaction_session_timeout', ?::text, true) IS NOT NULL"
	// The start of the attempt, and for how long the statement has run.
	const took = " RETURNING started, (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint"
	// This is true in the transaction that has written the row, and in no later one.
	const ours = " AND xmin = pg_current_xact_id_if_assigned()::xid"
	j.joined = newJoinedStatements(j.names, " AND "+takes, took, ours, frees)
	g.insert = j.names.sql("INSERT INTO {records} (" + joinedColumns + ", guard, expires) SELECT ?::bytea, 1, ?::bigint, 2, ?::smallint, ?::bytea, ?::bytea, " +
		"?::bigint, ?::bytea, ?::bigint, ?::bytea, ?::bytea, 0, now.t, now.t, 0, 0, 0, 0, ?::bytea, ?::bytea, ?::bytea, now.t + ?::bigint " + //nolint:dupword // it is created and started at once
		"FROM (SELECT {clock} AS t) now WHERE " + takes + " ON CONFLICT DO NOTHING" + took)
	return g
}

func (g *postgresGuard) claim(idem.KeyID) bool { return true }
func (g *postgresGuard) unclaim(idem.KeyID)    {}

func (g *postgresGuard) before(_ context.Context, t *joinedTx) (bool, error) {
	t.state = lockFree
	return false, nil
}

// after unlocks after a rollback. The connection is closed if that fails, which unlocks too.
func (g *postgresGuard) after(ctx context.Context, t *joinedTx) error {
	const unlock = "SELECT pg_advisory_unlock($1)"
	switch t.state {
	case lockHeld:
		return t.session.Exec(ctx, unlock, g.lock(t.id))
	case lockUnsure: // the server would write a warning into its log if the session has no such lock
		return t.session.Exec(ctx, unlock+" FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"+
			" AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = $1", g.lock(t.id))
	}
	return nil
}

// lock is the number of the advisory lock of a key.
func (g *postgresGuard) lock(id idem.KeyID) int64 {
	return int64(binary.BigEndian.Uint64(id[:8])) ^ g.keys
}

func (g *postgresGuard) held(ctx context.Context, id idem.KeyID) (bool, error) {
	var free bool
	err := g.joined.db.QueryRowContext(ctx, "SELECT pg_try_advisory_xact_lock_shared($1)", g.lock(id)).Scan(&free)
	return !free, err
}

// shortWait is how long a statement runs that has not waited for another transaction.
const shortWait = 10 * time.Millisecond

func (g *postgresGuard) take(ctx context.Context, t *joinedTx, p *pending, from *idem.Record) (taken, waited bool, err error) {
	lock, idle := g.lock(p.id), fmt.Sprintf("%dms", p.idle.Milliseconds())
	text, args := g.insert, g.joined.insertArgs(p)
	if from != nil {
		text, args = g.joined.joined.update, g.joined.updateArgs(p, from)
	}
	args = append(args, lock, idle)
	if !g.joined.pooler {
		t.state = lockUnsure // the statement may lock and not take the key
	}
	var started, ran int64
	switch err := t.session.QueryRow(ctx, text, args, &started, &ran); {
	case errors.Is(err, sql.ErrNoRows):
		return false, false, nil
	case err != nil:
		return false, false, err
	}
	if !g.joined.pooler {
		t.state = lockHeld
	}
	t.started = time.UnixMicro(started).UTC()
	// With these levels every statement sees the data of the time of the first one, before a wait.
	level := g.joined.isolation
	old := level == sql.LevelRepeatableRead || level == sql.LevelSnapshot || level == sql.LevelSerializable
	return true, old && time.Duration(ran)*time.Microsecond > shortWait, nil
}

// escaped is intact. A transaction with a failed statement can only be rolled back, and so can
// one that the handler ended by the methods of sql.Tx, because the guard refused its commit.
func (g *postgresGuard) escaped(ctx context.Context, t *joinedTx) error { return t.intact(ctx) }

func (g *postgresGuard) complete(ctx context.Context, t *joinedTx, c *completion) error {
	var freed bool
	err := t.session.QueryRow(ctx, g.joined.joined.complete, append(t.completeArgs(c), g.lock(t.id)), &freed)
	switch {
	case sqlState(err) == "25P02": // in_failed_sql_transaction
		return fmt.Errorf("%w: %w", idem.ErrSwallowed, err)
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: its record is not there any more", idem.ErrEscaped)
	case err != nil:
		return err
	}
	t.state = lockFree
	return nil
}

func (g *postgresGuard) commit(ctx context.Context, t *joinedTx) error { return t.session.Commit(ctx) }

func (g *postgresGuard) undone(err error) bool {
	switch state := sqlState(err); {
	case strings.HasPrefix(state, "23"), strings.HasPrefix(state, "40"): // constraint, rollback
		return true
	case state == "":
		// The answer to COMMIT was ROLLBACK. pgx has a value for this error, and an import of
		// pgx would link it into services on other databases.
		return strings.Contains(err.Error(), "commit unexpectedly resulted in rollback")
	}
	return false
}

// sqlState returns the SQLSTATE of an error of the server, or "".
func sqlState(err error) string {
	e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	if !ok {
		return ""
	}
	return e.SQLState()
}
