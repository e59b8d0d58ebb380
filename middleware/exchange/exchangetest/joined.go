package exchangetest

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// ledger is a joined store in memory. A transaction shows nothing before its COMMIT.
type ledger struct {
	*memorystore.Store

	mu        sync.Mutex
	conflicts int                   // transactions that are still to meet one
	commit    error                 // that COMMIT fails with
	open      map[driver.KeyID]bool // transactions
	paid      int                   // transactions that have committed
}

var _ driver.JoinedStore = (*ledger)(nil)

func newLedger(records *memorystore.Store, conflicts int) *ledger {
	return &ledger{Store: records, conflicts: conflicts, open: map[driver.KeyID]bool{}}
}

// engine returns an engine in joined mode.
func (l *ledger) engine(t testing.TB, opts ...idem.Option) *idem.Engine {
	t.Helper()
	engine, err := idem.NewJoined(l, opts...)
	if err != nil {
		t.Fatalf("NewJoined() = %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := engine.Close(ctx); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return engine
}

// joinLedger gives the bundle an engine in joined mode.
func (b *bundle) joinLedger() *ledger {
	b.Helper()
	l := newLedger(b.records, 0)
	b.engine = l.engine(b.T, idem.WithObserver(func(_ context.Context, ev telemetry.Event) { b.seen[ev.Type].Add(1) }))
	return l
}

// conflict counts a conflict, if there is still one to meet.
func (l *ledger) conflict() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conflicts--
	return l.conflicts >= 0
}

// refuse makes COMMIT fail, as a deferred constraint does.
func (l *ledger) refuse() {
	l.refuseWith(errors.Join(driver.ErrRolledBack, errors.New("a deferred constraint")))
}

// refuseWith makes COMMIT fail with an error.
func (l *ledger) refuseWith(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.commit = err
}

func (l *ledger) payments() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.paid
}

// pays is a handler that takes the transaction of its request.
func (b *bundle) pays(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, err := idem.JoinedTxOf(r.Context()); err != nil {
			b.Errorf("JoinedTxOf() = %v", err)
		}
		h(w, r)
	}
}

func (l *ledger) BeginJoined(ctx context.Context, id driver.KeyID, req driver.JoinedRequest) (driver.JoinedBegin, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[id] {
		return driver.JoinedBegin{Held: true}, nil
	}
	rec, err := l.Get(ctx, id)
	if err != nil || rec.State != driver.StateNone && rec.State != driver.StateReleased {
		return driver.JoinedBegin{Record: rec}, err
	}
	b := driver.JoinedBegin{Tx: &ledgerTx{l, id}, Replaced: driver.Replaced{State: rec.State, Attempt: rec.Attempt}}
	n := rec.Attempt.Number + 1
	rec.State, rec.Kind, rec.Route, rec.Fingerprint, rec.Started = driver.StatePending, req.Kind, req.Route, req.Fingerprint, time.Now()
	rec.Attempt = driver.Attempt{Number: n, Fence: driver.JoinedFence(n), Nonce: req.Nonce}
	b.Record, l.open[id] = rec, true
	return b, nil
}

func (l *ledger) BeginWithoutKey(context.Context, time.Duration) (driver.JoinedTx, error) {
	return &ledgerTx{ledger: l}, nil
}

func (l *ledger) Held(_ context.Context, id driver.KeyID) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[id], nil
}

func (l *ledger) Probe(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	return l.Get(ctx, id)
}

func (l *ledger) Bind(_ context.Context, _ driver.KeyID, fp driver.Fingerprint, _ time.Duration) (driver.Fingerprint, error) {
	return fp, nil
}

// ledgerTx is the transaction of one attempt.
type ledgerTx struct {
	ledger *ledger
	id     driver.KeyID
}

func (tx *ledgerTx) Commit(ctx context.Context, s driver.Settlement) error {
	l := tx.ledger
	if l.conflict() {
		return driver.ErrConflict
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.commit != nil {
		return l.commit
	}
	var err error
	if tx.id != (driver.KeyID{}) {
		var res driver.SettleResult
		if res, err = l.Settle(ctx, tx.id, s); err == nil && !res.Settled {
			err = driver.ErrRolledBack
		}
	}
	if err == nil {
		l.paid++
	}
	return err
}

func (tx *ledgerTx) Rollback(context.Context) error { return nil }

// Release frees the key.
func (tx *ledgerTx) Release(context.Context) {
	tx.ledger.mu.Lock()
	defer tx.ledger.mu.Unlock()
	delete(tx.ledger.open, tx.id)
}

func (tx *ledgerTx) Check(context.Context) (time.Duration, error) { return time.Minute, nil }

// Conflict takes [driver.ErrConflict] for the error of a statement.
func (tx *ledgerTx) Conflict(err error) bool {
	return errors.Is(err, driver.ErrConflict) && tx.ledger.conflict()
}

// LosingCommit is RefusingCommit with a database that does not answer a COMMIT.
func LosingCommit(t testing.TB) *idem.Engine {
	t.Helper()
	l := newLedger(memorystore.New(), 0)
	l.refuseWith(driver.ErrUnavailable)
	return l.engine(t)
}

// RefusingCommit returns an engine in joined mode, in memory, whose database refuses every COMMIT,
// as with a deferred constraint. So no success of its handlers may reach a client. The handlers have
// to take their transaction with [idem.JoinedTxOf].
func RefusingCommit(t testing.TB) *idem.Engine {
	t.Helper()
	l := newLedger(memorystore.New(), 0)
	l.refuse()
	return l.engine(t)
}
