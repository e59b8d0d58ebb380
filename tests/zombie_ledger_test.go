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
	unlock := s.lockLedger()
	all := v.reachOverEach(t, "in-the-write", "at=checked")
	v.pause(t)
	unlock()
	s.waitSucceedable(all)

	want := map[transport]payment{}
	for _, r := range all {
		retry := other.over(r.via).payUntil(patience, r.key, amount, r.key)
		want[r.via] = paidOnce(t, other.over(r.via), r.key)
		original(t, "retry over "+r.via.String(), retry, want[r.via])
	}
	v.resume(t)
	overEachOf(t, all, func(t *testing.T, r running) {
		woken(t, r.done, want[r.via])
		v.neverLogged(t, "at=after-ledger", op(r.key))
		original(t, "retry at the one that woke up", v.over(r.via).payUntil(patience, r.key, amount, r.key), want[r.via])
		paidOnce(t, other.over(r.via), r.key)
	})
}

// The database does not answer for longer than a lease is trusted: the write
// is given up while it is still safe to, and a retry pays.
func TestLedgerThatHangsIsGivenUpInTime(t *testing.T) {
	s, v, other := failover(t)
	unlock := s.lockLedger()
	all := v.reachOverEach(t, "hanging", "at=checked")
	for _, r := range all {
		refused(t, "answer over "+r.via.String(), <-r.done, "unavailable", "ownership-lost")
	}
	unlock()
	overEachOf(t, all, func(t *testing.T, r running) {
		retry := other.over(r.via).payUntil(patience, r.key, amount, r.key)
		original(t, "retry", retry, paidOnce(t, other.over(r.via), r.key))
	})
}
