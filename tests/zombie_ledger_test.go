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
	s, v, other := systemWithVictim(t)
	unlock := s.lockLedger()
	all := v.startPaymentsUpTo(t, "in-the-write", "at=checked")
	v.pause(t)
	unlock()
	s.waitLocksFree(all)

	want := map[transport]payment{}
	for _, r := range all {
		want[r.via] = wantPaidOnce(t, "retry over "+r.via.String(), other.client(r.via), r.key).payment
	}
	v.resume(t)
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		wantPaymentOrOpenRefusal(t, r.done, want[r.via])
		v.wantNoLog(t, "at=after-ledger", logOp(r.key))
		wantPayment(t, "retry at the one that woke up", v.client(r.via).payWithRetries(r.key, amount, r.key), want[r.via])
		wantOnePayment(t, other.client(r.via), r.key)
	})
}

// The database does not answer for longer than a lease is trusted: the write
// is given up while it is still safe to, and a retry pays.
func TestLedgerThatHangsIsGivenUpInTime(t *testing.T) {
	s, v, other := systemWithVictim(t)
	unlock := s.lockLedger()
	all := v.startPaymentsUpTo(t, "hanging", "at=checked")
	for _, r := range all {
		wantRefusal(t, "answer over "+r.via.String(), <-r.done, "ledger-unavailable", "unavailable", "ownership-lost")
	}
	unlock()
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		wantPaidOnce(t, "retry", other.client(r.via), r.key)
	})
}
