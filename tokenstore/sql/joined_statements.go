package sqlstore

import (
	"github.com/idemkeeper/idemkeeper/idem"
)

// joinedColumns are the columns of a pending record, in the order of pendingValues.
const joinedColumns = "k, form, rev, state, kind, route, fingerprint, attempt, domain, fence, nonce, settlement, repaired, " +
	"created, started, settled, result_expires, key_expires, token_expires, decided_by, decided_reason, open_since"

// guarded reports whether the table has a column that keeps a pending record from being
// committed. MySQL checks foreign keys at once, so it has none.
func (d *dialect) guarded() bool { return d != mysql }

// insert returns the statement that inserts a pending record, and its arguments. It waits for
// other transactions with the key.
func (j *Joined) insert(p pending) (text string, args []any) {
	columns, values := joinedColumns, "?, 1, ?, 2, ?, ?, ?, ?, ?, ?, ?, ?, 0, {clock}, {clock}, 0, 0, 0, 0, ?, ?, {clock}"
	args = p.values()
	if j.dialect.guarded() {
		columns, values, args = columns+", guard", values+", ?", append(args, p.id[:])
	}
	return j.names.sql("INSERT INTO {records} (" + columns + ") VALUES (" + values + ") {once}"), args
}

// unsettled is the ID of the settlement of a record without one.
var unsettled idem.Nonce

// values are the arguments of an INSERT, up to the guard.
func (p *pending) values() []any {
	r := &p.req
	return []any{p.id[:], newRev(), r.Kind, text(r.Route), packFingerprint(r.Fingerprint), int64(p.next), text(idem.JoinedDomain),
		int64(p.next), r.Nonce[:], unsettled[:], []byte{}, []byte{}}
}

// update returns the statement that makes a committed record pending if it is still what the
// caller saw, and its arguments. more is further conditions.
func (j *Joined) update(p pending, from *idem.Record, more string, moreArgs ...any) (statement string, args []any) {
	guard := ""
	if j.dialect.guarded() {
		guard = ", guard = k"
	}
	set := "UPDATE {records} SET rev = ?, state = 2, route = ?, fingerprint = ?, attempt = ?, domain = ?, fence = ?, nonce = ?, " +
		"settlement = ?, repaired = 0, started = {clock}, settled = 0, result_expires = 0, key_expires = 0, decided_by = ?, decided_reason = ?, " +
		"response = NULL, previous = NULL, open_since = {clock}, expires = NULL" + guard +
		" WHERE k = ? AND state = ? AND attempt = ? AND domain = ? AND fence = ? AND nonce = ? AND (expires IS NULL OR expires > {clock})" + more
	r, was := &p.req, &from.Attempt
	args = []any{newRev(), text(r.Route), packFingerprint(r.Fingerprint), int64(p.next), text(idem.JoinedDomain), int64(p.next), r.Nonce[:],
		unsettled[:], []byte{}, []byte{},
		p.id[:], from.State, int64(was.Number), text(was.Fence.Domain), int64(was.Fence.Token), was.Nonce[:]}
	return j.names.sql(set), append(args, moreArgs...)
}

// complete returns the statement that makes the record of a transaction completed, and its
// arguments. It changes one row. more is a further condition.
func (j *Joined) complete(t *joinedTx, c completion, more string, moreArgs ...any) (text string, args []any) {
	guard := ""
	if j.dialect.guarded() {
		guard = ", guard = NULL"
	}
	text = "UPDATE {records} SET rev = ?, state = 3, settlement = ?, response = ?, settled = {clock}, result_expires = {clock} + ?, " +
		"key_expires = {clock} + ?, open_since = NULL, expires = {clock} + ?" + guard + " WHERE k = ? AND nonce = ? AND state = 2" + more
	args = []any{newRev(), c.settlement[:], c.response, c.resultTTL, c.keyTTL, c.resultTTL, t.id[:], t.attempt.Nonce[:]}
	return j.names.sql(text), append(args, moreArgs...)
}

// ours is a condition for the record of a transaction.
const ours = " FROM {records} WHERE k = ? AND nonce = ? AND state = 2"
