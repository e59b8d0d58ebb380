package faults

import (
	"database/sql"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// lockLedger takes the SQLite file's write lock: whoever writes waits until
// unlock is called.
func lockLedger(s *kit.System) (unlock func()) {
	s.T.Helper()
	db, err := sql.Open("sqlite", "file:"+s.Ledger+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { db.Close() })
	tx, err := db.BeginTx(s.T.Context(), nil)
	if err != nil {
		s.T.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(); err != nil {
			s.T.Errorf("unlock the ledger: %v", err)
		}
	}
}

// The holder is paused, or dies, in the middle of its ledger write: it has
// passed the last check, and waits for the database. It wakes up when the next
// holder has paid, with nothing between it and the money but its time-out and
// the fence.
func TestHolderPausedInItsLedgerWriteCannotPayLater(t *testing.T) {
	s, v, other := kit.SystemWithVictim(t)
	unlock := lockLedger(s)
	all := v.StartPaymentsUpTo(t, "in-the-write", "at=checked")
	v.Pause(t)
	unlock()
	waitLocksFree(s, all)

	want := map[kit.Transport]kit.Payment{}
	for _, r := range all {
		want[r.Via] = kit.WantPaidOnce(t, "retry over "+r.Via.String(), other.Client(r.Via), r.Key).Payment
	}
	v.Resume(t)
	kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
		wantPaymentOrOpenRefusal(t, r.Done, want[r.Via])
		v.WantNoLog(t, "at=after-ledger", kit.LogOp(r.Key))
		kit.WantPayment(t, "retry at the one that woke up", v.Client(r.Via).PayWithRetries(r.Key, kit.Amount, r.Key), want[r.Via])
		kit.WantOnePayment(t, other.Client(r.Via), r.Key)
	})
}

// The database does not answer for longer than a lease is trusted: the write
// is given up while it is still safe to, and a retry pays.
func TestLedgerThatHangsIsGivenUpInTime(t *testing.T) {
	s, v, other := kit.SystemWithVictim(t)
	unlock := lockLedger(s)
	all := v.StartPaymentsUpTo(t, "hanging", "at=checked")
	for _, r := range all {
		kit.WantRefusal(t, "answer over "+r.Via.String(), <-r.Done, "ledger-unavailable", "unavailable", "ownership-lost")
	}
	unlock()
	kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
		kit.WantPaidOnce(t, "retry", other.Client(r.Via), r.Key)
	})
}
