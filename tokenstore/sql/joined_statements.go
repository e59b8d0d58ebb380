package sqlstore

import (
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// joinedStatements are the texts of the statements of joined mode, made once.
type joinedStatements struct {
	insert   string // a pending record; it waits for other transactions with the key
	update   string // a committed record becomes pending, if it is still what the caller saw
	complete string // the record of a transaction becomes completed
	intact   string // counts the record of a transaction
	left     string // counts the record of an attempt in any state
	lock     string // locks a record, waiting for other transactions
	clock    string

	bind, bound, rebind, extend string
}

// joinedColumns are the columns of a pending record, without guard and expires.
const joinedColumns = "k, form, rev, state, kind, route, fingerprint, attempt, domain, fence, nonce, settlement, repaired, " +
	"created, started, settled, result_expires, key_expires, token_expires, decided_by, decided_reason, result_ttl, key_ttl"

// joinedForms are what the statements of a database have around those of all databases.
type joinedForms struct {
	lock, taken string // before and after the UPDATE that takes the key
	ours        string // a condition of the record of this transaction
	done        string // after the UPDATE that completes the record
}

// newJoinedStatements makes the statements of a database.
//
// PostgreSQL and SQLite refuse to commit a pending record, because of its guard. So nothing ever
// looks for it in the indexes of open and of expired records. It is not in the first, and in the
// second it has the place that it will have as completed. The update to completed then leaves the
// indexes alone, which saves PostgreSQL a fifth of its work for the record.
func newJoinedStatements(n names, f joinedForms) joinedStatements {
	guarded := n.dialect.DeferredKeys // MySQL checks foreign keys at once
	insert := "INSERT INTO {records} (" + joinedColumns + ", open_since) VALUES (?, 1, ?, 2, ?, ?, ?, ?, ?, ?, ?, ?, 0, {clock}, {clock}, 0, 0, 0, 0, ?, ?, ?, ?, {clock})"
	pending, completed := ", open_since = {clock}, expires = NULL", ", open_since = NULL, expires = {clock} + ?"
	if guarded {
		insert = "INSERT INTO {records} (" + joinedColumns + ", guard, expires) VALUES (?, 1, ?, 2, ?, ?, ?, ?, ?, ?, ?, ?, 0, {clock}, {clock}, 0, 0, 0, 0, ?, ?, ?, ?, ?, {clock} + ?)"
		pending = ", open_since = NULL, expires = {clock} + ?, guard = k"
		completed = ", expires = CASE WHEN expires >= {clock} + ? THEN expires ELSE {clock} + ? END, guard = NULL"
	}
	return joinedStatements{
		insert: n.sql(insert + " {once}"),
		update: n.sql(f.lock + "UPDATE {records} SET rev = ?, state = 2, route = ?, fingerprint = ?, attempt = ?, domain = ?, fence = ?, nonce = ?, " +
			"settlement = ?, repaired = 0, started = {clock}, settled = 0, result_expires = 0, key_expires = 0, decided_by = ?, decided_reason = ?, " +
			"result_ttl = ?, key_ttl = ?, response = NULL, previous = NULL" + pending +
			" WHERE k = ? AND state = ? AND attempt = ? AND domain = ? AND fence = ? AND nonce = ? AND (expires IS NULL OR expires > {clock})" + f.taken),
		complete: n.sql("UPDATE {records} SET rev = ?, state = 3, settlement = ?, response = ?, settled = {clock}, result_expires = {clock} + ?, " +
			"key_expires = {clock} + ?, result_ttl = 0, key_ttl = 0" + completed + " WHERE k = ? AND nonce = ? AND state = 2" + f.ours + f.done),
		intact: n.sql("SELECT count(*) FROM {records} WHERE k = ? AND nonce = ? AND state = 2" + f.ours),
		left:   n.sql("SELECT count(*) FROM {records} WHERE k = ? AND nonce = ?"),
		lock:   n.sql("SELECT k FROM {records} WHERE k = ?" + n.dialect.ForUpdate),
		clock:  n.sql("SELECT {clock}"),

		bind:  n.sql("INSERT INTO {bindings} (k, form, kind, route, fingerprint, created, expires) VALUES (?, 1, 0, ?, ?, {alone:{clock}}, {clock} + ?) {once}{durable}"),
		bound: n.sql("SELECT fingerprint, created, expires - {clock} FROM {bindings} WHERE k = ?"),
		rebind: n.sql("UPDATE {bindings} SET fingerprint = ?, created = {clock}, expires = {clock} + ?" +
			" WHERE k = ? AND fingerprint = ? AND created = ?{alone}{durable}"),
		extend: n.sql("UPDATE {bindings} SET expires = {clock} + ? WHERE k = ? AND fingerprint = ?{alone}{durable}"),
	}
}

// unsettled is the ID of the settlement of a record without one.
var unsettled driver.Nonce

// pending is the record that takes a key.
type pending struct {
	id   driver.KeyID
	req  driver.JoinedRequest
	next uint32        // number of the attempt
	idle time.Duration // of the transaction
	free bool          // no other transaction has the key, as a look has shown just now
	seen found         // the record that an INSERT has met, if the statement returns it
}

// insertArgs are the arguments of insert.
func (j *Joined) insertArgs(p *pending) []any {
	r := &p.req
	args := []any{p.id[:], newRev(), r.Kind, text(r.Route), packFingerprint(r.Fingerprint), int64(p.next), text(driver.JoinedDomain),
		int64(p.next), r.Nonce[:], unsettled[:], []byte{}, []byte{}, wholeMicros(r.ResultTTL), wholeMicros(r.KeyTTL)}
	if !j.dialect.DeferredKeys {
		return args
	}
	return append(args, p.id[:], p.place())
}

// updateArgs are the arguments of update, without those of a lock.
func (j *Joined) updateArgs(p *pending, from *driver.Record) []any {
	r, was := &p.req, &from.Attempt
	args := []any{newRev(), text(r.Route), packFingerprint(r.Fingerprint), int64(p.next), text(driver.JoinedDomain), int64(p.next), r.Nonce[:],
		unsettled[:], []byte{}, []byte{}, wholeMicros(r.ResultTTL), wholeMicros(r.KeyTTL)}
	if j.dialect.DeferredKeys {
		args = append(args, p.place())
	}
	return append(args, p.id[:], from.State, int64(was.Number), text(was.Fence.Domain), int64(was.Fence.Token), was.Nonce[:])
}

// place is when the completed record will be due, at the latest, in microseconds from now. A
// handler may take some time, and the record must not be removed early.
func (p *pending) place() int64 {
	return (p.req.ResultTTL + min(p.req.ResultTTL/16, time.Hour)).Microseconds()
}

// completion is an outcome as the record keeps it.
type completion struct {
	settlement driver.Nonce
	response   []byte
	resultTTL  int64 // in microseconds
	keyTTL     int64
}

// completeArgs are the arguments of complete, without those of done.
func (t *joinedTx) completeArgs(c *completion) []any {
	args := []any{newRev(), c.settlement[:], c.response, c.resultTTL, c.keyTTL, c.resultTTL}
	if t.joined.dialect.DeferredKeys {
		args = append(args, c.resultTTL)
	}
	return append(args, t.id[:], t.attempt.Nonce[:])
}
