package idem_test

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// Close must not say that nothing needs the locks while a transaction still holds its key.
func TestJoinedTransactionIsReleasedBeforeCloseCallsItOver(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	releasing, release := make(chan struct{}), make(chan struct{})
	b.ledger.onRelease = func() { close(releasing); <-release }
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = b.doWith("k1", "100", b.paying(201))
	}()
	<-releasing
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.engine.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close() while a transaction is released = %v, want an error", err)
	}
	close(release)
	<-done
}

// A transaction that was rolled back leaves the record of before, whoever rolled it back.
func TestJoinedRollbackByTheDatabaseTellsTheRecordOfBefore(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"conflict": driver.ErrConflict, "rolled back": driver.ErrRolledBack, "swallowed": driver.ErrSwallowed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupJoined(t, parts{})
			b.ledger.onCommit = func(tx *bookTx, _ driver.Settlement) (bool, error) { return true, tx.end(err) }
			_, got := b.doWith("k1", "100", b.paying(201))
			b.wantRefused(got, idem.CodeUnavailable)
			for _, ev := range b.events {
				if ev.Type == telemetry.EventReleased && ev.State != driver.StateNone {
					t.Errorf("event %v has state %v, want %v", ev.Type, ev.State, driver.StateNone)
				}
			}
		})
	}
}

// beginsBy answers Begin and Get by what a test says.
type beginsBy struct {
	driver.Store
	begin func(driver.BeginRequest) (driver.BeginResult, error)
	get   func() (driver.Record, error)
}

func (s *beginsBy) Begin(_ context.Context, _ driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
	return s.begin(req)
}

func (s *beginsBy) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	if s.get != nil {
		return s.get()
	}
	return s.Store.Get(ctx, id)
}

// givenUp is a store whose first Settle is given up by its caller. It keeps what it was given.
type givenUp struct {
	driver.Store
	repair *driver.Repair
	was    driver.Repair
}

func (s *givenUp) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
	if s.repair == nil {
		s.repair, s.was = st.Repair, *st.Repair
		return driver.SettleResult{}, errDown
	}
	return s.Store.Settle(ctx, id, st)
}

// A copy of a call may still be on its way when the answer to another copy is there, so the engine
// must not change what it has given to the store.
func TestRepairOfASettlementNeverChanges(t *testing.T) {
	t.Parallel()
	b := setup(t, parts{})
	s := &givenUp{Store: b.store}
	b.engine = b.another(b.locker, s)
	b.wantPayment("k", "a", 1, false)
	if *s.repair != s.was {
		t.Errorf("the repair is %+v now, and was %+v", *s.repair, s.was)
	}
}

// Likewise.
func TestRequestOfABeginNeverChanges(t *testing.T) {
	t.Parallel()
	b := setup(t, parts{policy: func(p *idem.Policy) { p.InDoubt = idem.RunAgain() }})
	var froms []*driver.Attempt
	var was []driver.Attempt
	s := &beginsBy{Store: b.store}
	s.begin = func(req driver.BeginRequest) (driver.BeginResult, error) {
		if req.RunAgainFrom != nil {
			froms, was = append(froms, req.RunAgainFrom), append(was, *req.RunAgainFrom)
		}
		n := uint32(len(froms) + 1)
		earlier := driver.Fence{Domain: req.Fence.Domain}
		return driver.BeginResult{Record: driver.Record{State: driver.StateUnknown, Kind: req.Kind, Route: req.Route, Fingerprint: req.Fingerprint,
			Attempt: driver.Attempt{Number: n, Fence: earlier, Nonce: driver.NewNonce()}}}, nil
	}
	b.engine = b.another(b.locks, s)
	_, err := b.do("k", "a")
	b.wantRefused(err, idem.CodeInProgress)
	if len(froms) == 0 {
		t.Fatal("no attempt started over from an open one")
	}
	for i := range froms {
		if *froms[i] != was[i] {
			t.Errorf("round %d started from attempt %d, and its request says %d now", i, was[i].Number, froms[i].Number)
		}
	}
}

// What the look at a stale fence has shown is an attempt that was seen to run.
func TestStaleFenceOfARunningAttemptForbidsToFailOpen(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func() (driver.Record, error){
		"panics":    func() (driver.Record, error) { panic("store") },
		"no answer": func() (driver.Record, error) { return driver.Record{}, driver.ErrUnavailable },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, l, _ := restored(t)
			b.policy.FailOpen = true
			reads := 0
			s := &beginsBy{Store: b.store}
			s.begin = func(driver.BeginRequest) (driver.BeginResult, error) {
				l.restore(10)
				return driver.BeginResult{}, driver.ErrStaleFence
			}
			s.get = func() (driver.Record, error) {
				switch reads++; reads {
				case 1:
					return driver.Record{}, nil
				case 2: // another holder has begun since
					return driver.Record{State: driver.StatePending, Kind: driver.ClientKey, Attempt: driver.Attempt{Number: 1, Fence: driver.Fence{Domain: "domain 0", Token: 100}}}, nil
				}
				return fails()
			}
			b.engine = b.another(l, s, idem.WithObserver(b.observe))
			_, err := b.do("k", "a")
			b.wantRefused(err, idem.CodeUnavailable)
			b.wantRuns(0)
			if reads < 3 {
				t.Errorf("%d reads, want 3", reads)
			}
		})
	}
}
