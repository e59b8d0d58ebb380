package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// joinedRounds bounds how often BeginJoined starts over.
const joinedRounds = 5

// BeginJoined opens a transaction that takes the key. [driver.JoinedStore] has the contract. The
// error wraps driver.ErrUnavailable, driver.ErrNewerRecord or driver.ErrCorruptRecord.
func (j *Joined) BeginJoined(ctx context.Context, id driver.KeyID, req driver.JoinedRequest) (begin driver.JoinedBegin, err error) {
	if err := j.mayWrite("begin joined"); err != nil {
		return begin, err
	}
	usual := req.Kind == driver.ClientKey && req.RunAgainFrom == nil
	slot := usual && !req.Looked && (j.connector.Pipelined() || j.looks) && j.slotIsFree()
	defer func() {
		if slot { // the transaction has none of it
			j.giveSlot()
		}
	}()
	// A client key without a record is the usual case, so the first round inserts one unseen, or looks in the connection that inserts
	// it. A look by itself comes first if there is no such way, or if that would have to wait for the transactions of others.
	var from *driver.Record
	if !usual || !slot && !req.Looked {
		rec, err := j.Get(ctx, id)
		switch {
		case err != nil:
			return begin, err
		case usual && rec.State == driver.StateNone:
		case starts(&rec, &req):
			from = &rec
		default:
			return driver.JoinedBegin{Record: rec}, nil
		}
	}
	if !j.guard.claim(id) {
		return driver.JoinedBegin{Held: true}, nil
	}
	claimed := true
	defer func() {
		if claimed {
			j.guard.unclaim(id)
		}
	}()
	if !slot {
		if err := j.takeSlot(ctx); err != nil {
			return begin, err
		}
		slot = true
	}
	// From here on the transaction gives back what it has.
	release := func() { j.giveSlot(); j.guard.unclaim(id) }
	for round := range joinedRounds {
		t, held, seen, err := j.tryBegin(ctx, id, req, from, round > 0)
		switch {
		case err != nil:
			return begin, err
		case held: // or others have locked a record that answers, which the caller reads then
			return driver.JoinedBegin{Held: true}, nil
		case seen != nil:
			if t != nil {
				slot, claimed = false, false
				t.release = release
				go t.finish(ctx, true) // nobody waits for that
			}
			return driver.JoinedBegin{Record: *seen}, nil
		case t != nil:
			slot, claimed = false, false
			t.release = release
			begin.Tx, begin.Record = t, t.record(from)
			if from != nil {
				begin.Replaced = driver.Replaced{State: from.State, Attempt: from.Attempt}
			}
			return begin, nil
		}
		// The key was not free, or another transaction was in the way.
		rec, err := j.Get(ctx, id)
		switch {
		case err != nil:
			return begin, err
		case rec.State == driver.StateNone && req.Kind == driver.ClientKey && req.RunAgainFrom == nil:
			from = nil
		case starts(&rec, &req):
			from = &rec
		default:
			return driver.JoinedBegin{Record: rec}, nil
		}
		held, err = j.heldElsewhere(ctx, id)
		if err == nil && !held && rec.State == driver.StateNone {
			err = j.forget(ctx, id)
		}
		if err != nil || held {
			return driver.JoinedBegin{Held: held}, err
		}
	}
	return driver.JoinedBegin{Held: true}, nil
}

// forget removes the row of a key whose time is over. An INSERT would meet it.
func (j *Joined) forget(ctx context.Context, id driver.KeyID) error {
	_, err := j.db.ExecContext(ctx, j.statements.forget.text, append([]any{id[:]}, j.statements.forget.clocks(0)...)...)
	if j.dialect.Fault(err) == sqldialect.Conflict {
		return nil
	}
	return j.failed("begin joined", err)
}

// Held reports whether an attempt of the key runs in a transaction. The error wraps
// driver.ErrUnavailable.
func (j *Joined) Held(ctx context.Context, id driver.KeyID) (bool, error) {
	held, err := j.guard.held(ctx, id)
	return held, j.failed("held", err)
}

// heldElsewhere is Held for a caller whose own claim counts as held on SQLite.
func (j *Joined) heldElsewhere(ctx context.Context, id driver.KeyID) (bool, error) {
	if j.dialect.File {
		return false, nil
	}
	return j.Held(ctx, id)
}

// starts reports whether a committed record lets an attempt start.
func starts(rec *driver.Record, req *driver.JoinedRequest) bool {
	if rec.Kind != req.Kind {
		return false
	}
	if req.RunAgainFrom != nil {
		return rec.State.Open() && rec.Attempt == *req.RunAgainFrom
	}
	return rec.State == driver.StateIssued || rec.State == driver.StateReleased
}

// takeSlot waits until one of the transactions that may be open at once is free.
func (j *Joined) takeSlot(ctx context.Context) error {
	if n := j.connector.Size(); n != j.pool {
		return fmt.Errorf("tokenstore/sql: begin joined: %w: the pool has %d connections now and had %d when Joined was called", driver.ErrUnavailable, n, j.pool)
	}
	if j.slots == nil {
		return nil
	}
	select {
	case j.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("tokenstore/sql: begin joined: %w: all %d joined transactions are in use: %w", driver.ErrUnavailable, cap(j.slots), ctx.Err())
	}
}

// slotIsFree takes a slot if that needs no wait.
func (j *Joined) slotIsFree() bool {
	switch {
	case j.connector.Size() != j.pool: // takeSlot tells of it
		return false
	case j.slots == nil:
		return true
	}
	select {
	case j.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (j *Joined) giveSlot() {
	if j.slots != nil {
		<-j.slots
	}
}

// tryBegin opens a transaction and takes the key in it, once. It returns no transaction if it
// did not get the key, or if it may have waited for it. If it has seen a record that does not let the attempt
// start, it returns that with the transaction, if one is open, and the caller finishes it. free says that no other
// transaction had the key a moment ago.
func (j *Joined) tryBegin(ctx context.Context, id driver.KeyID, req driver.JoinedRequest, from *driver.Record, free bool) (t *joinedTx, held bool, seen *driver.Record, err error) {
	if from != nil {
		promised := driver.Record{ResultTTL: req.ResultTTL, KeyTTL: req.KeyTTL}
		rules.Remember(&promised, from, from.Settled) // without the time of the database, the whole time of a released key counts
		req.ResultTTL, req.KeyTTL = promised.ResultTTL, promised.KeyTTL
	}
	t = j.newTx(req.HandlerTimeout)
	t.id, t.req = id, req
	p := pending{id: id, req: req, next: 1, idle: t.idle, free: free}
	if from != nil {
		p.next = from.Attempt.Number + 1
	}
	t.attempt = driver.Attempt{Number: p.next, Fence: driver.JoinedFence(p.next), Nonce: req.Nonce}
	if held, err = t.open(ctx, &p, from); held || err != nil {
		return nil, held, nil, err
	}
	taken, waited := false, false
	if from != nil || !p.seen.there {
		taken, waited, err = j.guard.take(ctx, t, &p, from)
	}
	if err == nil && taken && !waited {
		if s := databaseSQL(t.session); s != nil {
			s.hand()
		}
		return t, false, nil, nil
	}
	if err == nil && !waited && from == nil && p.seen.there {
		if e, err := j.entry("begin joined", &p.seen); err != nil {
			t.finish(ctx, true)
			return nil, false, nil, err
		} else if rec := e.Copy(); rec.State != driver.StateNone && !starts(&rec, &req) {
			if s := databaseSQL(t.session); s == nil || s.tx != nil {
				return t, false, &rec, nil
			}
			t.finish(ctx, true) // nothing has begun
			if still, err := j.durable(ctx, "begin joined", id, &p.seen); still || err != nil {
				return nil, false, &rec, err
			}
			return nil, false, nil, nil
		}
	}
	t.finish(ctx, true) // the slot stays
	switch fault := j.dialect.Fault(err); {
	case err == nil, fault == sqldialect.Duplicate, fault == sqldialect.Conflict, fault == sqldialect.Busy && ctx.Err() == nil:
		return nil, false, nil, nil
	}
	return nil, false, nil, j.failed("begin joined", err)
}

// idleMargin is what the database adds to the deadline of a handler.
const idleMargin = 10 * time.Second

// newTx is a transaction that has not begun.
func (j *Joined) newTx(handlerTimeout time.Duration) *joinedTx {
	t := &joinedTx{joined: j, idle: j.idle}
	if handlerTimeout > 0 {
		t.idle = max(j.idle, handlerTimeout+idleMargin)
	}
	return t
}

// beginsLater reports whether the statement that takes the key also begins the transaction.
func beginsLater(s Session) bool {
	switch s.(type) {
	case PipelinedSession, *compoundSession:
		return true
	}
	return false
}

// open gets a connection and sends BEGIN, unless that comes later or the key has a record that the caller does not know.
func (t *joinedTx) open(ctx context.Context, p *pending, from *driver.Record) (held bool, err error) {
	j := t.joined
	if t.session, err = j.connector.Connect(ctx); err != nil {
		return false, j.failed("begin joined", err)
	}
	held, err = j.guard.before(ctx, t, p)
	if !held && err == nil && (from != nil || !p.seen.there) && !beginsLater(t.session) {
		err = t.session.Begin(ctx, j.isolation)
	}
	if held || err != nil {
		t.close(ctx, err != nil)
	}
	return held, j.failed("begin joined", err)
}

// record is the record as the transaction sees it.
func (t *joinedTx) record(from *driver.Record) driver.Record {
	rec := driver.Record{Created: t.started}
	if from != nil {
		rec.Created, rec.TokenExpires = from.Created, from.TokenExpires
	}
	rec.State, rec.Kind, rec.Route, rec.Attempt = driver.StatePending, t.req.Kind, t.req.Route, t.attempt
	rec.Fingerprint, rec.Started = t.req.Fingerprint, t.started
	rec.ResultTTL, rec.KeyTTL = t.req.ResultTTL, t.req.KeyTTL
	return rec
}
