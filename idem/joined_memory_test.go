package idem_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// book is a joined store in memory. Its transactions write lines, which commit together with
// the record. A test can make each step of the end of a transaction fail.
type book struct {
	*memorystore.Store

	mu       sync.Mutex
	lines    []string                 // committed
	held     map[driver.KeyID]*bookTx // open transactions
	bindings map[driver.KeyID]driver.Fingerprint
	begun    []*bookTx

	onGet      func() error
	onBind     func() error
	onBegin    func() (handled bool, b driver.JoinedBegin, err error)
	onHeld     func() error
	onCommit   func(tx *bookTx, s driver.Settlement) (handled bool, err error)
	onRollback func()
	onProbe    func() error
	onSettle   func() error
	onRelease  func()
}

func newBook() *book {
	return &book{Store: memorystore.New(), held: map[driver.KeyID]*bookTx{}, bindings: map[driver.KeyID]driver.Fingerprint{}}
}

var _ driver.JoinedStore = (*book)(nil)

func (l *book) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	if l.onGet != nil {
		if err := l.onGet(); err != nil {
			return driver.Record{}, err
		}
	}
	return l.Store.Get(ctx, id)
}

func (l *book) BeginJoined(ctx context.Context, id driver.KeyID, req driver.JoinedRequest) (b driver.JoinedBegin, err error) {
	if l.onBegin != nil {
		if handled, b, err := l.onBegin(); handled {
			return b, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[id] != nil {
		return driver.JoinedBegin{Held: true}, nil
	}
	rec, err := l.Store.Get(ctx, id)
	if err != nil {
		return b, err
	}
	again := req.RunAgainFrom != nil && rec.State.Open() && rec.Attempt == *req.RunAgainFrom
	switch {
	case again, rec.State == driver.StateNone && req.Kind == driver.ClientKey,
		rec.Kind == req.Kind && (rec.State == driver.StateIssued || rec.State == driver.StateReleased):
	default:
		return driver.JoinedBegin{Record: rec}, nil
	}
	b.Replaced = driver.Replaced{State: rec.State, Attempt: rec.Attempt}
	n := rec.Attempt.Number + 1
	rec.State, rec.Kind, rec.Route, rec.Fingerprint, rec.Started = driver.StatePending, req.Kind, req.Route, req.Fingerprint, time.Now()
	rec.Attempt = driver.Attempt{Number: n, Fence: driver.JoinedFence(n), Nonce: req.Nonce}
	b.Record = rec
	tx := &bookTx{ledger: l, id: id, begin: b}
	b.Tx, l.held[id] = tx, tx
	l.begun = append(l.begun, tx)
	return b, nil
}

func (l *book) BeginWithoutKey(context.Context, time.Duration) (driver.JoinedTx, error) {
	if l.onBegin != nil {
		if handled, _, err := l.onBegin(); handled {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	tx := &bookTx{ledger: l}
	l.begun = append(l.begun, tx)
	return tx, nil
}

func (l *book) Held(_ context.Context, id driver.KeyID) (bool, error) {
	if l.onHeld != nil {
		if err := l.onHeld(); err != nil {
			return false, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[id] != nil, nil
}

func (l *book) Probe(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	if l.onProbe != nil {
		if err := l.onProbe(); err != nil {
			return driver.Record{}, err
		}
	}
	if held, _ := l.Held(ctx, id); held {
		return driver.Record{}, errors.New("the transaction that holds the key does not end")
	}
	return l.Store.Get(ctx, id)
}

func (l *book) Bind(_ context.Context, id driver.KeyID, fp driver.Fingerprint, _ time.Duration) (driver.Fingerprint, error) {
	if l.onBind != nil {
		if err := l.onBind(); err != nil {
			return driver.Fingerprint{}, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if bound, ok := l.bindings[id]; ok {
		return bound, nil
	}
	l.bindings[id] = fp
	return fp, nil
}

func (l *book) Settle(ctx context.Context, id driver.KeyID, s driver.Settlement) (driver.SettleResult, error) {
	if l.onSettle != nil {
		if err := l.onSettle(); err != nil {
			return driver.SettleResult{}, err
		}
	}
	return l.Store.Settle(ctx, id, s)
}

// bookTx is a transaction. Its lines are invisible until it commits.
type bookTx struct {
	ledger *book
	id     driver.KeyID
	begin  driver.JoinedBegin
	lines  []string
	failed error // of a statement
	ended  bool  // by the handler

	ends, releases int // calls of the engine
}

var errDeadlock = errors.New("deadlock")

// txOf is what a store gives its users.
func txOf(ctx context.Context) (*bookTx, error) {
	tx, err := idem.JoinedTxOf(ctx)
	if err != nil {
		return nil, err
	}
	return tx.(*bookTx), nil
}

func (tx *bookTx) Commit(ctx context.Context, s driver.Settlement) error {
	l := tx.ledger
	tx.count(&tx.ends)
	if l.onCommit != nil {
		if handled, err := l.onCommit(tx, s); handled {
			return err
		}
	}
	switch {
	case tx.ended:
		return driver.ErrEscaped
	case tx.failed != nil:
		return tx.end(fmt.Errorf("%w: %w", driver.ErrSwallowed, tx.failed))
	}
	return tx.commit(ctx, s)
}

// commit commits, whatever a test has set.
func (tx *bookTx) commit(ctx context.Context, s driver.Settlement) error {
	l := tx.ledger
	if tx.id != (driver.KeyID{}) {
		res, err := l.Store.Settle(ctx, tx.id, s)
		if err != nil {
			return err
		}
		if !res.Settled {
			return tx.end(driver.ErrRolledBack)
		}
	}
	l.mu.Lock()
	l.lines = append(l.lines, tx.lines...)
	l.mu.Unlock()
	return tx.end(nil)
}

func (tx *bookTx) end(err error) error {
	tx.ledger.mu.Lock()
	defer tx.ledger.mu.Unlock()
	if tx.ledger.held[tx.id] == tx {
		delete(tx.ledger.held, tx.id)
	}
	return err
}

func (tx *bookTx) Rollback(context.Context) error {
	tx.count(&tx.ends)
	if tx.ledger.onRollback != nil {
		tx.ledger.onRollback()
	}
	if tx.ended {
		return driver.ErrEscaped
	}
	return tx.end(nil)
}

// Release frees the key of a transaction that the handler had ended.
func (tx *bookTx) Release(context.Context) {
	if tx.ledger.onRelease != nil {
		tx.ledger.onRelease()
	}
	tx.count(&tx.releases)
	_ = tx.end(nil)
}

func (tx *bookTx) count(calls *int) {
	tx.ledger.mu.Lock()
	defer tx.ledger.mu.Unlock()
	*calls++
}

func (tx *bookTx) Check(context.Context) (time.Duration, error) {
	if tx.ended {
		return 0, driver.ErrEscaped
	}
	return time.Minute, nil
}

func (tx *bookTx) Conflict(err error) bool { return errors.Is(err, errDeadlock) }

// joinedBundle is an engine in joined mode on a book.
type joinedBundle struct {
	*bundle
	ledger *book
}

func setupJoined(t *testing.T, p parts) *joinedBundle {
	t.Helper()
	l := newBook()
	b := &joinedBundle{bundle: &bundle{T: t, store: l}, ledger: l}
	opts := append([]idem.Option{idem.WithObserver(b.observe), idem.WithSettleTimeout(100 * time.Millisecond)}, p.opts...)
	engine, err := idem.NewJoined(l, opts...)
	if err != nil {
		t.Fatalf("NewJoined() = %v", err)
	}
	b.engine = engine
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = engine.Close(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, tx := range l.begun {
			if tx.ends == 0 || tx.releases != 1 {
				t.Errorf("a transaction has ended %d times and was released %d times, want once each", tx.ends, tx.releases)
			}
		}
	})
	b.policy = idem.Policy{Name: "POST /pay", Scope: func(context.Context) (string, error) { return "m1", nil }}
	if p.policy != nil {
		p.policy(&b.policy)
	}
	b.policy = withDefaults(t, b.policy)
	return b
}

// write adds a line in the transaction of a handler.
func (b *joinedBundle) write(ctx context.Context, line string) *bookTx {
	tx, err := txOf(ctx)
	if err != nil {
		b.Errorf("JoinedTxOf() = %v", err)
		return &bookTx{}
	}
	tx.lines = append(tx.lines, line)
	return tx
}

// paying is a handler that writes a payment and answers with a status.
func (b *joinedBundle) paying(status int) idem.Handler {
	return func(ctx context.Context) (idem.Response, error) {
		n := b.runs.Add(1)
		b.write(ctx, fmt.Sprintf("payment %d", n))
		resp := created(n)
		resp.Status = status
		return resp, nil
	}
}

// wantPayment sends a request that pays in its transaction, and wants the payment of a run for it.
func (b *joinedBundle) wantPayment(key, body string, run int, replayed bool) idem.Result {
	b.Helper()
	res, err := b.doWith(key, body, b.paying(201))
	b.wantPaid(res, err, run, replayed)
	return res
}

// wantRefusal sends a request that would pay in its transaction, and wants it refused.
func (b *joinedBundle) wantRefusal(key, body string, code idem.Code) {
	b.Helper()
	_, err := b.doWith(key, body, b.paying(201))
	b.wantRefused(err, code)
}

func (b *joinedBundle) wantLines(want ...string) {
	b.Helper()
	b.ledger.mu.Lock()
	defer b.ledger.mu.Unlock()
	if fmt.Sprint(b.ledger.lines) != fmt.Sprint(want) {
		b.Errorf("the ledger has %q, want %q", b.ledger.lines, want)
	}
}
