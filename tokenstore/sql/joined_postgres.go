package sqlstore

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// postgresGuard is the [guard] of PostgreSQL.
//
// A transaction that takes a key also takes an advisory lock for it, in the same statement. So
// a duplicate need not wait to learn that the key is taken. The primary key decides, and the
// column guard refuses the commit of a pending record.
//
// The lock is one of the session. A handler that ends the transaction by itself keeps it, and
// no duplicate starts until the outcome is recorded as unknown. The statement that completes the
// record also unlocks, so the usual request needs no statement for that.
//
// A pooler of transactions gives each transaction another session. A lock of the session would stay
// there after a rollback, and nobody could unlock it. So the statement compares the session that it
// runs in with the one that the server gave to this client. If they differ, or if the driver does
// not tell, the lock is one of the transaction.
type postgresGuard struct {
	joined *Joined
	keys   int64  // tells the advisory locks of this table from those of others
	insert string // takes a key without a record
	only   string // completes a record, or fails if it is not there
	plain  string // begins without a record
	first  string // fails if the transaction is not that one

	pooled atomic.Bool // no session keeps a lock
}

// postgresState is what the statement that takes the key has found out.
type postgresState struct {
	lock postgresLock
	pid  int64  // of the session
	xid  string // of the transaction; no other one of the server ever has it
}

// postgresLock tells whether the session has the lock.
type postgresLock uint8

const (
	lockFree postgresLock = iota
	lockUnsure
	lockHeld
)

func newPostgresGuard(ctx context.Context, j *Joined) (guard, error) {
	stubs, err := locksAreStubs(ctx, j.db)
	if err != nil {
		return nil, err
	}
	if stubs {
		j.pooler = true
		j.log.WarnContext(ctx, "tokenstore/sql: the advisory locks of this server lock nothing, so nothing holds the key of a handler that has sent ROLLBACK. See docs/sql.md on poolers")
	}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "idemkeeper records %d", j.recordsTable) // never fails
	g := &postgresGuard{joined: j, keys: int64(h.Sum64())}
	g.pooled.Store(j.pooler)
	const (
		// It never waits, and gives a row in any case. The server reads the time-out when the
		// transaction is idle, so any of its statements can set it. A shorter one of the DBA stays.
		lock = "l AS MATERIALIZED (SELECT s.pid, s.own, s.idle, " +
			"CASE WHEN NOT s.free THEN false WHEN s.own THEN pg_catalog.pg_try_advisory_lock(s.k) ELSE pg_catalog.pg_try_advisory_xact_lock(s.k) END AS ok, " +
			"pg_catalog.set_config('idle_in_transaction_session_timeout', s.idle::text, true) AS idle_set " +
			"FROM (SELECT pg_catalog.pg_backend_pid() AS pid, pg_catalog.pg_backend_pid() = ?::bigint AS own, ?::bigint AS k, " +
			shorterIdle + " AS idle, "
		anyway = "true AS free) s), taken AS ("
		unless = "NOT EXISTS (SELECT FROM r) AS free) s), taken AS (" // nothing is locked for a record that is there
		// The start of the attempt, and for how long the statement has run.
		returning = " RETURNING started, (extract(epoch from pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp()) * 1000000)::bigint AS ran"
		// With the other levels every statement sees the data of the time of the first one.
		result = ") SELECT l.ok, l.own, l.pid, l.idle, pg_catalog.current_setting('transaction_isolation') NOT LIKE 'read %', " +
			"coalesce(pg_catalog.pg_current_xact_id_if_assigned()::text, ''), t.started, t.ran"
		alone = " FROM l LEFT JOIN taken t ON true"
		// This is true in the transaction that has written the row, and in no later one.
		ours = " AND xmin = pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.xid"
		// A handler may have unlocked before. That matters to no transaction that still has its record.
		unlock = " RETURNING CASE WHEN ?::boolean THEN pg_catalog.pg_advisory_unlock(?::bigint) END, "
	)
	done := unlock + j.dialect.Durably("true") // the last statement before COMMIT, so what the handler has set does not count
	j.joined = newJoinedStatements(j.names, joinedForms{lock: "WITH " + lock + anyway, taken: " AND (SELECT ok FROM l)" + returning + result + alone, ours: ours, done: done})
	g.only = "WITH done AS (" + j.joined.complete + ") SELECT 1 / count(*)::integer FROM done"
	// At SERIALIZABLE a look before the INSERT would make payments conflict that share no more than a page of the index.
	const look = " FROM {records} WHERE k = ?::bytea AND pg_catalog.current_setting('transaction_isolation') <> 'serializable'), "
	g.insert = j.names.sql("WITH r AS MATERIALIZED (SELECT rev, " + strings.Join(columns, ", ") + look + lock + unless +
		"INSERT INTO {records} (" + joinedColumns + ", guard, expires) SELECT ?::bytea, 1, ?::bigint, 2, ?::smallint, ?::bytea, ?::bytea, " +
		"?::bigint, ?::bytea, ?::bigint, ?::bytea, ?::bytea, 0, now.t, now.t, 0, 0, 0, 0, ?::bytea, ?::bytea, ?::bigint, ?::bigint, ?::bytea, now.t + ?::bigint " + //nolint:dupword // it is created and started at once
		"FROM (SELECT {clock} AS t) now, l WHERE l.ok ON CONFLICT DO NOTHING" + returning + result + ", " + ofRecord + alone + " LEFT JOIN r ON true")
	// It has a number from the start on, by which it can be told from others.
	g.plain = j.dialect.Statement("SELECT s.pid, s.idle, pg_catalog.set_config('idle_in_transaction_session_timeout', s.idle::text, true), pg_catalog.pg_current_xact_id()::text " +
		"FROM (SELECT pg_catalog.pg_backend_pid() AS pid, " + shorterIdle + " AS idle) s")
	g.first = j.dialect.Statement("SELECT 1 / (" + sameTransaction + ")::integer, " + j.dialect.Durably("true"))
	return g, nil
}

const (
	// shorterIdle is the time-out of an idle transaction, in milliseconds. A shorter one of the DBA stays.
	shorterIdle = "least(?::bigint, nullif(extract(epoch from pg_catalog.current_setting('idle_in_transaction_session_timeout')::interval) * 1000, 0))::bigint"
	// sameTransaction reports whether the transaction is the one with a number.
	sameTransaction = "coalesce(pg_catalog.pg_current_xact_id_if_assigned()::text = ?, false)"
)

func (g *postgresGuard) begin(ctx context.Context, t *joinedTx) (err error) {
	s := &postgresState{}
	t.state = s
	var idle int64
	args, to := []any{t.idle.Milliseconds()}, []any{&s.pid, &idle, new(any), &s.xid}
	if pipelined, ok := t.session.(PipelinedSession); ok {
		err = pipelined.BeginRow(ctx, g.joined.isolation, g.plain, args, to...)
	} else if err = t.session.Begin(ctx, g.joined.isolation); err == nil {
		err = t.session.QueryRow(ctx, g.plain, args, to...)
	}
	t.idle = time.Duration(idle) * time.Millisecond
	return err
}

func (g *postgresGuard) intact(t *joinedTx) (statement string, args []any) {
	return g.joined.dialect.Statement("SELECT (" + sameTransaction + ")::integer"), []any{t.state.(*postgresState).xid}
}

func (g *postgresGuard) claim(driver.KeyID) bool { return true }
func (g *postgresGuard) unclaim(driver.KeyID)    {}

func (g *postgresGuard) before(_ context.Context, t *joinedTx, _ *pending) (bool, error) {
	t.state = &postgresState{}
	return false, nil
}

// lock is the number of the advisory lock of a key.
func (g *postgresGuard) lock(id driver.KeyID) int64 {
	return int64(binary.BigEndian.Uint64(id[:8])) ^ g.keys
}

func (g *postgresGuard) held(ctx context.Context, id driver.KeyID) (bool, error) {
	var free bool
	err := g.joined.db.QueryRowContext(ctx, "SELECT pg_catalog.pg_try_advisory_xact_lock_shared($1)", g.lock(id)).Scan(&free)
	return !free, err
}

// shortWait is how long a statement runs that has not waited for another transaction.
const shortWait = 10 * time.Millisecond

func (g *postgresGuard) take(ctx context.Context, t *joinedTx, p *pending, from *driver.Record) (taken, waited bool, err error) {
	var pid int64
	if !g.pooled.Load() {
		pid = int64(t.session.PID())
	}
	args := []any{pid, g.lock(p.id), p.idle.Milliseconds()}
	text := g.insert
	if from == nil {
		args = append(append([]any{p.id[:]}, args...), g.joined.insertArgs(p)...)
	} else {
		text, args = g.joined.joined.update, append(args, g.joined.updateArgs(p, from)...)
	}
	s := t.state.(*postgresState)
	if pid != 0 {
		s.lock = lockUnsure // the statement may lock and then fail
	}
	var locked, own, oldData bool
	var idle int64
	var started, ran sql.NullInt64
	found := []any{&locked, &own, &s.pid, &idle, &oldData, &s.xid, &started, &ran}
	if from == nil {
		found = append(found, p.seen.targets()...)
	}
	if pipelined, ok := t.session.(PipelinedSession); ok {
		err = pipelined.BeginRow(ctx, g.joined.isolation, text, args, found...)
	} else {
		err = t.session.QueryRow(ctx, text, args, found...)
	}
	if err != nil {
		return false, false, err
	}
	s.lock = lockFree
	if locked && own {
		s.lock = lockHeld
	}
	t.idle = time.Duration(idle) * time.Millisecond
	t.started = time.UnixMicro(started.Int64).UTC()
	return started.Valid, oldData && time.Duration(ran.Int64)*time.Microsecond > shortWait, nil
}

// after unlocks after a rollback, if the session is still the one that has locked. The connection is
// closed if that fails, which unlocks too.
func (g *postgresGuard) after(ctx context.Context, t *joinedTx) error {
	const unlock = "SELECT pg_catalog.pg_advisory_unlock($1)"
	s := t.state.(*postgresState)
	switch s.lock {
	case lockHeld:
		// In another session the division by 0 is an error.
		err := t.session.Exec(ctx, unlock+" WHERE 1 / (pg_catalog.pg_backend_pid() = $2)::integer = 1", g.lock(t.id), s.pid)
		if sqldialect.SQLState(err) == "22012" { // division_by_zero
			g.foreign(ctx, s.pid)
		}
		return err
	case lockUnsure: // the server would write a warning into its log if the session has no such lock
		return t.session.Exec(ctx, unlock+" FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid()"+
			" AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = $1", g.lock(t.id))
	}
	return nil
}

// foreign notes that a pooler has given the client another session after its transaction, although it
// gave the number of a real one to the client. From then on the locks are those of transactions. Only
// the session tells that: a lock that has gone may have been unlocked by the handler.
func (g *postgresGuard) foreign(ctx context.Context, pid int64) {
	if !g.pooled.Swap(true) {
		g.joined.log.WarnContext(ctx, "tokenstore/sql: a pooler stands between this process and PostgreSQL, and one advisory lock was left in the session. See docs/sql.md on poolers", "pid", pid)
	}
}
