package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// statements are the texts of the store's statements, made once.
type statements struct {
	get, read, begin                   string
	alone, within                      replacement
	list, listBare, ping, touch        string
	due, lockDue, dueBindings          string
	strip, remove, removeBindings      removal
	forget                             removal
	retire, retired, declare, declared string
	noteFence, raiseFence, highest     string
	decide, decisions, keys            string
}

// replacement are the statements that write a record. Those that stand alone fail in a session that would not
// commit them. Those within a transaction do not.
type replacement struct{ insert, update string }

// ofRecord are the columns of a record r that found reads.
var ofRecord = "{clock}, r.rev, r.response IS NOT NULL, r." + strings.Join(columns, ", r.")

func newStatements(n names) statements {
	all := strings.Join(columns, ", ")
	marks := strings.Repeat(", ?", len(columns))
	first := make([]string, len(columns)) // a first attempt starts at the time of its INSERT
	for i, c := range columns {
		if first[i] = "?"; isNow(c) {
			first[i] = "{clock}"
		}
	}
	started := "started"
	if n.dialect.Durably != nil {
		started = n.dialect.Durably(started)
	}
	within := strings.NewReplacer("{alone:?}", "?", "{alone}", "")
	insert := "INSERT INTO {records} (k, rev, " + all + ") VALUES (?, {alone:?}" + marks + ") {once}{durable}"
	update := "UPDATE {records} SET rev = ?, " + strings.Join(columns, " = ?, ") + " = ? WHERE k = ? AND rev = ?{alone}{durable}"
	st := statements{
		// The join gives a row with the time even without a record.
		get:    n.sql("SELECT " + ofRecord + " FROM {records} AS r WHERE r.k = ?"),
		read:   n.sql("SELECT " + ofRecord + " FROM (SELECT 1 AS one) AS o LEFT JOIN {records} AS r ON r.k = ?"),
		begin:  n.sql("INSERT INTO {records} (k, rev, " + all + ") VALUES (?, {alone:?}, " + strings.Join(first, ", ") + ") {once} RETURNING " + started),
		alone:  replacement{n.sql(insert), n.sql(update)},
		within: replacement{n.sql(within.Replace(insert)), n.sql(within.Replace(update))},
		// The first comparison with the place is for the index.
		list: n.sql("SELECT r.k, " + ofRecord + " FROM {records} AS r WHERE r.open_since IS NOT NULL AND r.open_since <= {indexed} - ?" +
			" AND r.open_since >= ? AND (r.open_since > ? OR r.k > ?) ORDER BY r.open_since, r.k LIMIT ?"),

		ping:  n.sql("UPDATE {schema} SET version = version WHERE version < 0"),
		touch: n.sql("UPDATE {records} SET rev = ? WHERE k = ? AND state = 3 AND settlement = ?{alone}"),

		retire:   n.sql("INSERT INTO {domains} (domain, decided_by, decided_reason, decided) VALUES (?, ?, ?, {alone:{clock}}) {once}{durable}"),
		retired:  n.sql("SELECT count(*) FROM {domains} WHERE domain = ?"),
		declare:  n.sql("INSERT INTO {notes} (name, noted) VALUES (?, {alone:{clock}}) {once}{durable}"),
		declared: n.sql("SELECT count(*) FROM {notes} WHERE name = ?"),
		// A note about a lock domain has its highest fence in the place of a time.
		noteFence:  n.sql("INSERT INTO {notes} (name, noted) VALUES (?, {alone:?}) {once}{durable}"),
		raiseFence: n.sql("UPDATE {notes} SET noted = ? WHERE name = ? AND noted < ?{alone}{durable}"),
		highest:    n.sql("SELECT coalesce(max(noted), 0) FROM {notes} WHERE name = ?"),
		// The transaction has locked the record, so it sees the earlier decisions about the key. Its
		// own is later, although the clock may stand still or step back.
		decide: n.sql("INSERT INTO {decisions} (k, settlement, attempt, state, decided_by, decided_reason, decided) VALUES (?, ?, ?, ?, ?, ?, " +
			"(SELECT CASE WHEN {clock} > last THEN {clock} ELSE last + 1 END FROM (SELECT coalesce(max(decided), 0) AS last FROM {decisions} WHERE k = ?) AS d)) {once}"),
		decisions: n.sql("SELECT decided, attempt, state, settlement, decided_by, decided_reason FROM {decisions}" +
			" WHERE k = ? ORDER BY decided DESC"),
		keys: n.sql("SELECT k FROM {records} WHERE k > ? ORDER BY k LIMIT ?"),
	}
	st.listBare = strings.NewReplacer("r.response IS NOT NULL", "1 = 0", "r.response,", "NULL,").Replace(st.list)
	st.expireStatements(n)
	return st
}

// isNow reports whether a column of a new key's first attempt has the time of its INSERT.
func isNow(column string) bool {
	return column == "created" || column == "started" || column == "open_since"
}

// mostTries bounds how often a change starts over because other changes of the same key came
// first. Each of them got something done.
const mostTries = 100

// load reads the record of a key, and the time. The error wraps driver.ErrUnavailable.
func (s *Store) load(ctx context.Context, method string, id driver.KeyID) (f found, err error) {
	err = s.read.QueryRowContext(ctx, s.statements.read, id[:]).Scan(f.targets()...)
	if err != nil {
		return f, s.failed(method, err)
	}
	return f, nil
}

// loadOnly is load without the time if there is no record, for callers that only read. It is
// faster then, because the answer has no columns.
func (s *Store) loadOnly(ctx context.Context, method string, id driver.KeyID) (f found, err error) {
	err = s.read.QueryRowContext(ctx, s.statements.get, id[:]).Scan(f.targets()...)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return f, s.failed(method, err)
	}
	return f, nil
}

// entry returns the record as it is now, and nil without one. Its time is over if the clock of the
// database and that of the process say so. The error wraps
// driver.ErrNewerRecord or driver.ErrCorruptRecord.
func (s *Store) entry(method string, f *found) (*rules.Entry, error) {
	if !f.there {
		return nil, nil
	}
	e, err := f.unpack()
	if err != nil {
		return nil, fmt.Errorf("tokenstore/sql: %s: %w", method, err)
	}
	return e.At(timeOf(f.now - s.ahead(f.now))), nil
}

// change reads the record of a key and replaces it by what decide returns, unless that is nil.
// The replacement is one statement. It does nothing if the record has changed since it was
// read, and change starts over then. So the change takes effect at the time of the read, and
// no lock is held between the statements.
//
// An error of decide comes back as it is, and nothing was written then.
func (s *Store) change(ctx context.Context, method string, id driver.KeyID, decide func(e *rules.Entry, now time.Time) (*rules.Entry, error)) error {
	return s.changeBy(ctx, method, id, decide, func(ctx context.Context, f *found, write *rules.Entry) (bool, error) {
		if d := write.Record.Decision; d.ByPerson() {
			return s.replaceDecided(ctx, method, id, f, write, write.Settlement, write.Record.State, d)
		}
		return s.replace(ctx, s.db, &s.statements.alone, method, id, f, write)
	})
}

// changeBy is change with a replacement of its own.
func (s *Store) changeBy(ctx context.Context, method string, id driver.KeyID, decide func(e *rules.Entry, now time.Time) (*rules.Entry, error),
	replace func(ctx context.Context, f *found, write *rules.Entry) (done bool, err error)) error {
	for range mostTries {
		f, err := s.load(ctx, method, id)
		if s.dialect.Fault(err) == sqldialect.Conflict { // at SERIALIZABLE
			continue
		}
		if err != nil {
			return err
		}
		e, err := s.entry(method, &f)
		if err != nil {
			return err
		}
		write, err := decide(e, timeOf(f.now))
		if err != nil {
			return err
		}
		if write == nil { // what was found is the answer
			if done, err := s.durable(ctx, method, id, &f); done || err != nil {
				return err
			}
			continue
		}
		done, err := replace(ctx, &f, write)
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("tokenstore/sql: %s: %w: the record kept changing", method, driver.ErrUnavailable)
}

// replace writes an entry in place of what was found, and reports whether that was still
// there.
func (s *Store) replace(ctx context.Context, q querier, st *replacement, method string, id driver.KeyID, f *found, write *rules.Entry) (done bool, err error) {
	r, err := pack(write)
	if err != nil {
		return false, fmt.Errorf("tokenstore/sql: %s: %w", method, err)
	}
	if len(r.Response) > s.longestResponse {
		return false, fmt.Errorf("tokenstore/sql: %s: %w: it has %d bytes, and the database takes %d", method, driver.ErrResponseInvalid, len(r.Response), s.longestResponse)
	}
	var res sql.Result
	if f.there {
		res, err = q.ExecContext(ctx, st.update, append(append([]any{newRev()}, r.values()...), id[:], f.rev)...)
	} else {
		res, err = q.ExecContext(ctx, st.insert, append([]any{id[:], newRev()}, r.values()...)...)
	}
	switch s.dialect.Fault(err) {
	case sqldialect.Duplicate, sqldialect.Conflict:
		return false, nil
	case sqldialect.TooBig:
		return false, fmt.Errorf("tokenstore/sql: %s: %w: %w", method, driver.ErrResponseInvalid, err)
	}
	if err != nil {
		return false, s.failed(method, err)
	}
	// The rev of an updated row differs, so every driver counts the row.
	n, err := res.RowsAffected()
	if err != nil {
		return false, s.failed(method, err)
	}
	return n == 1, nil
}

// begin begins one of the few transactions of the store itself.
func (s *Store) begin(ctx context.Context) (*sql.Tx, error) {
	return s.db.BeginTx(ctx, s.dialect.TxOptions())
}

// failed wraps an error of the database. That includes a context that ended. It returns nil
// for nil.
func (s *Store) failed(method string, err error) error {
	if err == nil || errors.Is(err, driver.ErrUnavailable) {
		return err
	}
	switch s.dialect.Fault(err) {
	case sqldialect.NoTable:
		err = fmt.Errorf("%w: %w", ErrNotMigrated, err)
	case sqldialect.ReadOnly:
		err = fmt.Errorf("%w: %w", errReadOnlyDatabase, err)
	case sqldialect.Busy:
		err = fmt.Errorf("another transaction holds the lock: %w", err)
	case sqldialect.Uncommitted:
		err = fmt.Errorf("%w: %w", errLeftOpen, err)
	case sqldialect.Denied:
		err = fmt.Errorf("%w: %w: %w", driver.ErrNoWrites, ErrRights, err)
	}
	if state := sqldialect.SQLState(err); state == "26000" || state == "42P05" { // prepared in another session
		err = fmt.Errorf("behind a pooler of transactions pgx needs default_query_exec_mode=exec in its connect string (docs/sql.md#poolers): %w", err)
	}
	return fmt.Errorf("tokenstore/sql: %s: %w: %w", method, driver.ErrUnavailable, err)
}

// mayWrite refuses every call of a read-only store, and texts too long for a record.
func (s *Store) mayWrite(method string, texts ...string) error {
	if s.config.readOnly {
		return fmt.Errorf("tokenstore/sql: %s: %w", method, ErrReadOnly)
	}
	for _, text := range texts {
		if len(text) > maxText {
			return fmt.Errorf("tokenstore/sql: %s: %.20q... has %d bytes, want at most %d", method, text, len(text), maxText)
		}
	}
	return nil
}
