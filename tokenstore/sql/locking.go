package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/internal/sqllocks"
)

// This file has the calls of a store in PostgreSQL that also take or give back a lock of package lock/sql. Each is one
// statement that stands alone, so all of it is committed or none of it, and a pooler may give each to another session.

var _ driver.LockingStore = (*Store)(nil)

// LockSpace implements [driver.LockingStore]. A locker of lock/sql on the same pool and with the same tables has the
// locks. It is nil on other databases than PostgreSQL.
func (s *Store) LockSpace() any {
	if !s.dialect.takesLocks || s.config.readOnly {
		return nil
	}
	return sqllocks.Space{DB: s.db, Schema: s.names.schema, Prefix: s.names.prefix}
}

// lockingStatements are the statements of this file, made once.
type lockingStatements struct {
	first, next beginLocked
	settle      string // completes an attempt
	settleFree  string // settle, and gives the lock of an owner back
	ours, free  string // whether an owner has the lock; gives it back
	shorten     string // ends a lock that would stay longer than its time to live
}

// beginLocked is a statement that takes a lock and writes a record. Its first parameters are those of the lock, then come the
// rev of the record and some of its columns, and last the rev of a record that it replaces.
type beginLocked struct {
	text    string
	columns []string // which have parameters
}

func (b *beginLocked) args(lock []any, r *row, rev int64) []any {
	args := append(slices.Clone(lock), newRev())
	for i, v := range r.values() {
		if slices.Contains(b.columns, columns[i]) {
			args = append(args, v)
		}
	}
	if rev != 0 {
		args = append(args, rev)
	}
	return args
}

// newLockingStatements makes the statements.
//
// The parameters of a lock are $1 the key ID, $2 its owner, $3 its nonce, $4 its holder, $5 its time to live, and $6 the last
// moment for this call. A row of a lock that is there is updated, and one that is not is inserted, so a caller that finds the
// lock taken writes nothing. PostgreSQL looks again at a row that another statement has written meanwhile. A lock that was taken for
// nothing is a division by zero, which undoes the statement.
func newLockingStatements(n names) (st lockingStatements) {
	const (
		seen = "WITH r AS MATERIALIZED (SELECT rev, {columns} FROM {records} WHERE k = $1::bytea), " +
			"h AS MATERIALIZED (SELECT owner, expires > {clock} AS lives, expires > {clock} + ttl AS long FROM {locks} WHERE k = $1::bytea AND owner IS NOT NULL), " +
			"may AS MATERIALIZED (SELECT domain, fence FROM {lock_domain} WHERE id = 1 AND {clock} <= $6::bigint AND "
		lock = "), made AS (INSERT INTO {locks} (k, owner, domain, fence, nonce, holder, ttl, expires) " +
			"SELECT $1::bytea, $2::bytea, m.domain, greatest({clock}, m.fence + 1), $3::bytea, $4::text, $5::bigint, {clock} + $5::bigint FROM may AS m " +
			"WHERE NOT EXISTS (SELECT FROM {locks} WHERE k = $1::bytea) ON CONFLICT DO NOTHING RETURNING fence, domain), " +
			"over AS (UPDATE {locks} SET owner = $2::bytea, fence = greatest({clock}, fence + 1), nonce = $3::bytea, holder = $4::text, ttl = $5::bigint, " +
			"expires = {clock} + $5::bigint WHERE k = $1::bytea AND (owner IS NULL OR expires <= {clock}) AND EXISTS (SELECT FROM may) RETURNING fence, domain), " +
			"l AS (SELECT fence, domain FROM made UNION ALL SELECT fence, domain FROM over), "
		answer = " AS started) SELECT 1 / (CASE WHEN l.fence IS NOT NULL AND b.started IS NULL THEN 0 ELSE 1 END), l.fence, coalesce(l.domain, ''), b.started, " +
			"coalesce(h.lives, false), coalesce(h.long, false), coalesce(h.lives AND h.owner = $2::bytea, false), " +
			"{record} FROM (SELECT 1 AS one) AS o LEFT JOIN l ON true LEFT JOIN b ON true LEFT JOIN h ON true LEFT JOIN r ON true"
	)
	text := func(s string) string {
		return n.sql(strings.NewReplacer("{columns}", strings.Join(columns, ", "), "{record}", ofRecord).Replace(s))
	}
	// values are the columns of a record, with parameters from $8 on for those whose value is not known.
	values := func(b *beginLocked, known func(column string) string) []string {
		all := make([]string, len(columns))
		for i, c := range columns {
			if all[i] = known(c); all[i] == "" {
				b.columns = append(b.columns, c)
				all[i] = "$" + strconv.Itoa(7+len(b.columns)) + "::" + postgresType(c)
			}
		}
		return all
	}
	ofLock := map[string]string{"domain": "convert_to(l.domain, 'UTF8')", "fence": "l.fence"}
	started := n.dialect.Durably("started")

	first := values(&st.first, func(c string) string {
		if isNow(c) {
			return "{clock}"
		}
		return ofLock[c]
	})
	st.first.text = text(seen + "NOT EXISTS (SELECT FROM r)" + lock +
		"b AS (INSERT INTO {records} (k, rev, {columns}) SELECT $1::bytea, $7::bigint, " + strings.Join(first, ", ") + " FROM l RETURNING " + started + answer)

	next := values(&st.next, func(c string) string { return ofLock[c] })
	for i, c := range columns {
		next[i] = c + " = " + next[i]
	}
	rev := "$" + strconv.Itoa(8+len(st.next.columns)) + "::bigint"
	st.next.text = text(seen + "EXISTS (SELECT FROM r WHERE rev = " + rev + ")" + lock +
		"b AS (UPDATE {records} AS u SET rev = $7::bigint, " + strings.Join(next, ", ") + " FROM l WHERE u.k = $1::bytea AND u.rev = " + rev +
		" AND (u.domain <> convert_to(l.domain, 'UTF8') OR u.fence >= 0 AND u.fence < l.fence) RETURNING " + started + answer)

	rest := strings.Replace(", r."+strings.Join(columns, ", r."), ", r.response", ", NULL::bytea AS response", 1)
	settle := "UPDATE {records} AS r SET rev = $2::bigint, state = 3, settlement = $3::bytea, response = $4::bytea, settled = {clock}, " +
		"result_expires = {clock} + greatest($5::bigint, r.result_ttl), expires = {clock} + greatest($5::bigint, r.result_ttl), " +
		"key_expires = {clock} + greatest($6::bigint, r.key_ttl, $5::bigint, r.result_ttl), result_ttl = 0, key_ttl = 0, previous = NULL, open_since = NULL " +
		"WHERE r.k = $1::bytea AND r.form = 1 AND r.state = 2 AND r.attempt = $7::bigint AND r.domain = $8::bytea AND r.fence = $9::bigint AND r.nonce = $10::bytea " +
		"RETURNING {clock} AS now, " + n.dialect.Durably("r.rev") + " AS rev, true AS answered" + rest
	st.settle = text(settle)
	st.settleFree = text("WITH done AS (" + settle + "), " +
		"freed AS (UPDATE {locks} SET owner = NULL, expires = {clock} WHERE k = $1::bytea AND owner = $11::bytea AND EXISTS (SELECT FROM done)) TABLE done")
	st.ours = text("SELECT EXISTS (SELECT FROM {locks} WHERE k = $1::bytea AND owner = $2::bytea AND expires > {clock})")
	// If the clock was set back, a lock would outlive its time to live by as much, see lock/sql.
	st.shorten = text("UPDATE {locks} SET expires = {clock} + ttl WHERE k = $1::bytea AND owner IS NOT NULL AND expires > {clock} + ttl")
	st.free = text("UPDATE {locks} SET owner = NULL, expires = {clock} WHERE k = $1::bytea AND owner = $2::bytea")
	return st
}

// postgresType is the type of a column of a record.
func postgresType(column string) string {
	switch column {
	case "route", "fingerprint", "domain", "nonce", "settlement", "decided_by", "decided_reason", "response", "previous":
		return "bytea"
	}
	return "bigint"
}

// serverClock estimates the time of the database, from the start of the store on. It is safe for concurrent use.
type serverClock struct{ seen atomic.Pointer[clockReading] }

type clockReading struct {
	now int64 // µs
	at  leaseclock.Instant
}

// note takes the time of an answer that has just come. So the estimate is never ahead, however long the call had to wait for a
// connection, and it is behind by the way back of the answer.
func (c *serverClock) note(now int64) {
	c.seen.Store(&clockReading{now, leaseclock.Now()})
}

// lateBy allows for an estimate of the server's time that is behind.
const lateBy = 100 * time.Millisecond

// lastMoment is the server's time in microseconds when a call of ctx must have come. Nobody waits for the answer of a later
// call. It is not known without a deadline.
func (c *serverClock) lastMoment(ctx context.Context) (last int64, ok bool) {
	seen := c.seen.Load()
	deadline, ok := ctx.Deadline()
	if seen == nil || !ok {
		return 0, false
	}
	return seen.now + (leaseclock.Now().Sub(seen.at) + time.Until(deadline) + lateBy).Microseconds(), true
}

// lockAnswer is what a beginLocked statement returns.
type lockAnswer struct {
	fence, started sql.NullInt64
	domain         string
	locked, long   bool // somebody had the lock when the statement began, and for longer than its time to live
	ours           bool // it was this owner
	found          found
}

func (a *lockAnswer) targets() []any {
	return append([]any{new(int64), &a.fence, &a.domain, &a.started, &a.locked, &a.long, &a.ours}, a.found.targets()...)
}

// BeginLocked implements [driver.LockingStore]. It takes one statement for the first attempt of a client key, and two for any other.
func (s *Store) BeginLocked(ctx context.Context, id driver.KeyID, req driver.BeginRequest, lock driver.OfferedLock) (res driver.LockedBegin, err error) {
	if err := s.mayWrite("begin", req.Route); err != nil {
		return res, err
	}
	last, ok := s.clock.lastMoment(ctx)
	if !ok || s.LockSpace() == nil {
		res.Record, err = s.Get(ctx, id)
		return res, err
	}
	req.RunAgainFrom, req.Fence = nil, driver.Fence{Domain: "\x00"} // the statements have that of the lock
	args := []any{id[:], []byte(lock.Owner), lock.Nonce[:], lock.Note, lock.TTL.Microseconds(), last}
	if req.Kind != driver.ClientKey { // a token needs a record, so the first statement only looks
		args[5] = 0
	}
	write := rules.Pending(nil, req, time.Time{})
	a, begun, err := s.beginLocked(ctx, &s.locking.first, args, write, 0)
	if begun {
		return a.begun(write, driver.Replaced{}), nil
	}
	if errors.Is(err, errNothing) {
		res.Record, err = s.Get(ctx, id)
		return res, err
	}
	if err != nil {
		return res, err
	}
	e, err := s.entry("begin", &a.found)
	if err != nil {
		return res, err
	}
	write, next, err := rules.Begin(e, req, timeOf(a.found.now))
	switch {
	case err != nil:
		return res, fmt.Errorf("tokenstore/sql: %w", err)
	case a.ours && next.Record.State == driver.StatePending && next.Record.Attempt.Nonce == req.Nonce && write == nil: // an earlier copy has begun
		res.Begun, res.Record, res.Replaced = true, next.Record, replacedBy(e)
		return res, nil
	case write == nil, a.locked, !a.found.there, e != nil && e.Record.Attempt.Nonce == req.Nonce: // an attempt of an earlier copy is over
		return a.kept(e), nil
	}
	args[5] = last
	a, begun, err = s.beginLocked(ctx, &s.locking.next, args, write, a.found.rev)
	switch {
	case begun:
		return a.begun(write, next.Replaced), nil
	case errors.Is(err, errNothing):
		res.Record, err = s.Get(ctx, id)
		return res, err
	case err != nil:
		return res, err
	}
	if e, err = s.entry("begin", &a.found); err != nil {
		return res, err
	}
	return a.kept(e), nil
}

// errNothing says that a statement was undone, because other transactions came first or because the fence of the lock is stale.
var errNothing = errors.New("tokenstore/sql: nothing has begun")

// beginLocked runs a statement once. rev is that of the record that it replaces, or 0.
func (s *Store) beginLocked(ctx context.Context, st *beginLocked, lock []any, write *rules.Entry, rev int64) (a lockAnswer, begun bool, err error) {
	r, err := pack(write)
	if err != nil {
		return a, false, fmt.Errorf("tokenstore/sql: begin: %w", err)
	}
	err = s.db.QueryRowContext(ctx, st.text, st.args(lock, r, rev)...).Scan(a.targets()...)
	switch f := s.dialect.Fault(err); {
	case f == sqldialect.Duplicate, f == sqldialect.Conflict, sqldialect.SQLState(err) == "22012": // division_by_zero
		return a, false, errNothing
	case err != nil:
		return a, false, s.failed("begin", err)
	}
	s.clock.note(a.found.now)
	if a.long {
		_, err = s.db.ExecContext(ctx, s.locking.shorten, lock[0])
		if s.dialect.Fault(err) == sqldialect.Conflict { // another caller does it otherwise
			err = nil
		}
	}
	return a, a.started.Valid, s.failed("begin", err)
}

// begun is the answer for an attempt that has begun as write says, under the fence of the lock.
func (a *lockAnswer) begun(write *rules.Entry, replaced driver.Replaced) driver.LockedBegin {
	rec := write.Copy()
	rec.Attempt.Fence = driver.Fence{Domain: a.domain, Token: uint64(a.fence.Int64)}
	if rec.Started = timeOf(a.started.Int64); rec.Created.IsZero() {
		rec.Created = rec.Started
	}
	return driver.LockedBegin{BeginResult: driver.BeginResult{Begun: true, Record: rec, Replaced: replaced}}
}

// kept is the answer of a statement that has found a record and begun nothing. A completed key is answered under any lock.
func (a *lockAnswer) kept(e *rules.Entry) (res driver.LockedBegin) {
	res.Record = e.Copy()
	res.Locked = a.locked && res.Record.State != driver.StateCompleted && res.Record.State != driver.StateExpired
	return res
}

// replacedBy is the record that an attempt has replaced.
func replacedBy(e *rules.Entry) (was driver.Replaced) {
	if e.Before != nil {
		was = driver.Replaced{State: e.Before.Record.State, Attempt: e.Before.Record.Attempt}
	}
	return was
}

// SettleUnlock implements [driver.LockingStore]. It takes one statement if the attempt is completed with an answer, and four
// otherwise.
func (s *Store) SettleUnlock(ctx context.Context, id driver.KeyID, st driver.Settlement, lock driver.OfferedLock) (res driver.SettleResult, err error) {
	if err := s.maySettle(&st); err != nil {
		return res, err
	}
	owner := []byte(lock.Owner)
	if res, done, err := s.complete(ctx, id, &st, owner); done || err != nil {
		return res, err
	}
	var ours bool
	err = s.db.QueryRowContext(ctx, s.locking.ours, id[:], owner).Scan(&ours)
	if err != nil {
		return res, s.failed("settle", err)
	}
	st.LeaseTrusted = st.LeaseTrusted && ours
	if res, err = s.Settle(ctx, id, st); err != nil || !ours || !res.Settled {
		return res, err
	}
	_, err = s.db.ExecContext(ctx, s.locking.free, id[:], owner)
	return res, s.failed("settle", err) // a copy of the settlement tries again
}

// complete settles an attempt that completes with an answer of its handler, in one statement on PostgreSQL, and gives back the lock of an
// owner. A nil owner has none, and then the tables of locks are not touched, because a store has no rights on them if its locks
// are elsewhere. It returns done false if it has changed nothing, and Settle decides.
func (s *Store) complete(ctx context.Context, id driver.KeyID, st *driver.Settlement, owner []byte) (res driver.SettleResult, done bool, err error) {
	if !s.dialect.takesLocks || st.State != driver.StateCompleted || st.Decision != (driver.Decision{}) {
		return res, false, nil
	}
	response, err := st.Response.AppendBinary(nil)
	if err != nil {
		return res, false, fmt.Errorf("tokenstore/sql: settle: %w", err)
	}
	if len(response) > s.longestResponse { // Settle tells
		return res, false, nil
	}
	resultTTL, keyTTL := rules.Longest(&driver.Record{}, st)
	var f found
	statement, args := s.locking.settle, []any{id[:], newRev(), st.ID[:], response, wholeMicros(resultTTL), wholeMicros(keyTTL),
		int64(st.Attempt.Number), text(st.Attempt.Fence.Domain), int64(st.Attempt.Fence.Token), st.Attempt.Nonce[:]}
	if owner != nil {
		statement, args = s.locking.settleFree, append(args, owner)
	}
	err = s.db.QueryRowContext(ctx, statement, args...).Scan(f.targets()...)
	switch fault := s.dialect.Fault(err); {
	case errors.Is(err, sql.ErrNoRows), fault == sqldialect.Conflict, fault == sqldialect.TooBig:
		return res, false, nil
	case err != nil:
		return res, false, s.failed("settle", err)
	}
	e, err := f.unpack()
	if err != nil {
		return res, false, fmt.Errorf("tokenstore/sql: settle: %w", err)
	}
	res.Settled = true
	if left := e.At(timeOf(f.now)); left != nil { // nil: its time is over already
		res.Record = left.Record
		if left.Record.State == driver.StateCompleted {
			res.Record.Response = st.Response
		}
	}
	return res, true, nil
}
