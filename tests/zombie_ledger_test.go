package tests

import (
	"database/sql"
	"testing"

	_ "modernc.org/sqlite" // driver "sqlite"
)

// lockLedger takes the SQLite file's write lock: whoever writes waits until
// unlock is called.
func (s *system) lockLedger() (unlock func()) {
	s.t.Helper()
	db, err := sql.Open("sqlite", "file:"+s.ledger+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { db.Close() })
	tx, err := db.BeginTx(s.t.Context(), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(); err != nil {
			s.t.Errorf("unlock the ledger: %v", err)
		}
	}
}

// The holder is paused, or dies, in the middle of its ledger write: it has
// passed the last check, and waits for the database. It wakes up when the next
// holder has paid, with nothing between it and the money but its time-out and
// the fence.
func TestHolderPausedInItsLedgerWriteCannotPayLater(t *testing.T) {
	s, v, other := failover(t)
	const key = "in-the-write"
	unlock := s.lockLedger()
	done := v.demo().paying(key, amount, key)
	v.waitLog(t, "at=checked", op(key))
	v.pause(t)
	unlock()
	s.waitLock(s.zooKeeper(), key, false)

	retry := other.demo().payUntil(patience, key, amount, key)
	want := paidOnce(t, other.demo(), key)
	original(t, "retry", retry, want)
	v.resume(t)
	woken(t, done, want)
	v.neverLogged(t, "at=after-ledger", op(key))
	original(t, "retry at the one that woke up", v.demo().payUntil(patience, key, amount, key), want)
	paidOnce(t, other.demo(), key)
}

// The database does not answer for longer than a lease is trusted: the write
// is given up while it is still safe to, and a retry pays.
func TestLedgerThatHangsIsGivenUpInTime(t *testing.T) {
	s, v, other := failover(t)
	const key = "hanging"
	unlock := s.lockLedger()
	done := v.demo().paying(key, amount, key)
	v.waitLog(t, "at=checked", op(key))
	a := <-done
	if a.err != nil || a.status != 503 {
		t.Errorf("answer = %v, want 503", a)
	}
	unlock()
	retry := other.demo().payUntil(patience, key, amount, key)
	original(t, "retry", retry, paidOnce(t, other.demo(), key))
}
