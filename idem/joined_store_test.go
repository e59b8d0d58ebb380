package idem_test

import (
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// Another attempt takes the key between the rollback of a refusal and the write that stores it.
func TestJoinedRefusalAfterAnotherAttemptGetsItsAnswer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		other func(b *joinedBundle)
		code  idem.Code // "" is the payment of the other attempt
	}{
		"the same request": {func(b *joinedBundle) { b.pays("k1", "100") }, ""},
		"another request":  {func(b *joinedBundle) { b.pays("k1", "900") }, idem.CodeKeyReused},
		"left pending":     {func(b *joinedBundle) { b.interruptedJoined("k1") }, idem.CodeInProgress},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupJoined(t, parts{})
			b.ledger.onSettle = func() error {
				b.ledger.onSettle = nil
				tt.other(b)
				return nil
			}
			res, err := b.doWith("k1", "100", b.paying(402))
			if tt.code == "" {
				b.wantPaid(res, err, 2, true)
				b.wantLines("payment 2")
			} else {
				b.wantRefused(err, tt.code)
			}
		})
	}
}

func TestJoinedRefusalThatIsNotStoredIsNotAnswered(t *testing.T) {
	t.Parallel()
	for err, code := range map[error]idem.Code{errors.New("connection refused"): idem.CodeUnavailable, driver.ErrCorruptRecord: idem.CodeOutcomeUnknown} {
		b := setupJoined(t, parts{})
		b.ledger.onSettle = func() error { return err }
		_, err := b.doWith("k1", "100", b.paying(402))
		b.wantRefused(err, code)
		b.ledger.onSettle = nil
		b.wantPayment("k1", "100", 2, false)
	}
}

func TestJoinedRefusalIsStoredAtTheSecondTry(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	b.ledger.onSettle = func() error {
		b.ledger.onSettle = nil
		return errors.New("connection refused")
	}
	res, err := b.doWith("k1", "100", b.paying(402))
	if err != nil || res.Response.Status != 402 {
		t.Errorf("Do() = %+v, %v, want 402", res, err)
	}
	b.wantState("k1", driver.StateCompleted)
}

// A route that fails open needs its transaction all the same.
func TestJoinedStoreThatFailsRunsNothing(t *testing.T) {
	t.Parallel()
	away := errors.New("connection refused")
	for name, tt := range map[string]struct {
		get, bind, begin error
		again            bool // the record changes whenever an attempt wants to start
		code             idem.Code
		unreadable       int // events
	}{
		"at the read":                     {get: away, code: idem.CodeUnavailable},
		"at the binding":                  {bind: away, code: idem.CodeUnavailable},
		"at the begin":                    {begin: away, code: idem.CodeUnavailable},
		"with an unreadable record":       {begin: driver.ErrCorruptRecord, code: idem.CodeOutcomeUnknown, unreadable: 1},
		"with one change after the other": {again: true, code: idem.CodeInProgress},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.FailOpen, p.CallsOtherSystems = true, true }})
			b.ledger.onGet = func() error { return tt.get }
			b.ledger.onBind = func() error { return tt.bind }
			b.ledger.onBegin = func() (bool, driver.JoinedBegin, error) {
				return tt.again || tt.begin != nil, driver.JoinedBegin{Record: driver.Record{State: driver.StateReleased}}, tt.begin
			}
			b.wantRefusal("k1", "100", tt.code)
			b.wantRuns(0)
			if n := b.saw(telemetry.EventUnreadable); n != tt.unreadable {
				t.Errorf("%d events of an unreadable record, want %d", n, tt.unreadable)
			}
		})
	}
}

// Held tells whether a transaction has a key, and its errors are not taken for "no".
func TestJoinedHeldThatFails(t *testing.T) {
	t.Parallel()
	away := errors.New("connection refused")
	b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
	id := b.interruptedJoined("k1")
	b.ledger.onHeld = func() error { return away }
	_, err := b.engine.Decide(t.Context(), id, driver.Attempt{}, idem.NotApplied(), driver.Decision{By: "ops"}, &b.policy)
	if !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, away) {
		t.Errorf("Decide() = %v, want %v", err, driver.ErrUnavailable)
	}
	_, err = b.engine.Status(t.Context(), "m1", "k2")
	b.wantRefused(err, idem.CodeUnavailable)
	if _, held, err := b.engine.HeldBy(t.Context(), id); held || !errors.Is(err, away) {
		t.Errorf("HeldBy() = %t, %v, want %v", held, err, away)
	}
	if domain, err := b.engine.DomainOf(t.Context(), id); domain != driver.JoinedDomain || err != nil {
		t.Errorf("DomainOf() = %q, %v, want %q", domain, err, driver.JoinedDomain)
	}
	b.ledger.onBegin = func() (bool, driver.JoinedBegin, error) { return true, driver.JoinedBegin{Held: true}, nil }
	_, err = b.do("k2", "100") // it waits for the other transaction
	b.wantRefused(err, idem.CodeUnavailable)
	b.ledger.onHeld = nil
	b.wantState("k1", driver.StatePending)
}

// The transaction commits after Status has read, and before it asks whether there is one.
func TestJoinedStatusOfATransactionThatHasJustCommitted(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	b.ledger.onHeld = func() error {
		b.ledger.onHeld = nil
		b.pays("k1", "100")
		return nil
	}
	b.wantState("k1", driver.StateCompleted)
}
