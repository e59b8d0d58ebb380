package pgxstore

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// gate lets the calls of a handler through until the handler has returned. A connection of pgx is
// for one goroutine, so the middleware waits until the calls of others have ended. The gate also sees
// whether the transaction has ended between two calls, and lets none through after that: the
// handler has sent ROLLBACK or COMMIT, and what it wrote next would commit by itself.
type gate struct {
	conn *pgconn.PgConn

	mu    sync.Mutex
	calls int           // under way
	rows  int           // rows and batches that are not closed
	lost  bool          // no transaction was open between two calls
	shut  chan struct{} // nil while the handler runs; closed once no call is under way
}

// enter lets a call in. The caller calls leave if the error is nil.
func (g *gate) enter() error { return g.enterAfter(ErrHandlerEnded) }

// enterAfter is enter for a call after the end of the transaction. lost is its error.
func (g *gate) enterAfter(lost error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		return pgx.ErrTxClosed
	}
	if g.look(); g.lost && lost != nil {
		return lost
	}
	g.calls++
	return nil
}

// leave ends a call that has opened some rows or closed them.
func (g *gate) leave(opened int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls--
	g.rows += opened
	g.look()
	if g.shut != nil && g.calls == 0 {
		close(g.shut)
	}
}

// look notes the state of the protocol. The connection changes it during a call only.
func (g *gate) look() {
	if g.calls == 0 && g.conn.TxStatus() == byte(sqlstore.TxIdle) {
		g.lost = true
	}
}

// close shuts the gate and waits until ctx ends. It reports whether no call is under way.
func (g *gate) close(ctx context.Context) bool {
	g.mu.Lock()
	if g.shut == nil {
		if g.shut = make(chan struct{}); g.calls == 0 {
			close(g.shut)
		}
	}
	g.mu.Unlock()
	select {
	case <-g.shut:
		return true
	default:
	}
	select {
	case <-g.shut:
		return true
	case <-ctx.Done():
		return false
	}
}

// status is what is known after close has returned true.
func (g *gate) status() (sqlstore.TxStatus, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.lost:
		return sqlstore.TxIdle, nil
	case g.rows > 0 || g.conn.IsBusy():
		return sqlstore.TxStatus(g.conn.TxStatus()), sqlstore.ErrRowsOpen
	}
	return sqlstore.TxStatus(g.conn.TxStatus()), nil
}

// gatedTx sends the calls of a transaction, or of a savepoint in it, through a gate.
type gatedTx struct {
	pgx.Tx
	gate *gate
}

func (t *gatedTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.gate.enter(); err != nil {
		return nil, err
	}
	defer t.gate.leave(0)
	nested, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &gatedTx{nested, t.gate}, nil
}

// Commit is that of a savepoint.
func (t *gatedTx) Commit(ctx context.Context) error {
	if err := t.gate.enter(); err != nil {
		return err
	}
	defer t.gate.leave(0)
	return t.Tx.Commit(ctx)
}

// Rollback is that of a savepoint.
func (t *gatedTx) Rollback(ctx context.Context) error {
	if err := t.gate.enter(); err != nil {
		return err
	}
	defer t.gate.leave(0)
	return t.Tx.Rollback(ctx)
}

func (t *gatedTx) Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error) {
	if err := t.gate.enter(); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer t.gate.leave(0)
	return t.Tx.Exec(ctx, statement, args...)
}

func (t *gatedTx) Prepare(ctx context.Context, name, statement string) (*pgconn.StatementDescription, error) {
	if err := t.gate.enter(); err != nil {
		return nil, err
	}
	defer t.gate.leave(0)
	return t.Tx.Prepare(ctx, name, statement)
}

func (t *gatedTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.gate.enter(); err != nil {
		return 0, err
	}
	defer t.gate.leave(0)
	return t.Tx.CopyFrom(ctx, table, columns, rows)
}

func (t *gatedTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.gate.enter(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer t.gate.leave(1)
	return &gatedBatch{t.Tx.SendBatch(ctx, b), opened{gate: t.gate}}
}

func (t *gatedTx) Query(ctx context.Context, statement string, args ...any) (pgx.Rows, error) {
	if err := t.gate.enter(); err != nil {
		return nil, err
	}
	rows, err := t.Tx.Query(ctx, statement, args...)
	if err != nil {
		t.gate.leave(0)
		return rows, err
	}
	t.gate.leave(1)
	return &gatedRows{rows, opened{gate: t.gate}}, nil
}

func (t *gatedTx) QueryRow(ctx context.Context, statement string, args ...any) pgx.Row {
	rows, err := t.Query(ctx, statement, args...)
	return &gatedRow{rows, err}
}

// opened are rows or a batch that a handler closes.
type opened struct {
	gate   *gate
	closed bool
}

// close runs a call that may close them.
func (o *opened) close(call func() (closed bool)) {
	if o.closed || o.gate.enterAfter(nil) != nil { // the middleware closes the connection then
		return
	}
	change := 0
	if call() {
		o.closed, change = true, -1
	}
	o.gate.leave(change)
}

type gatedRows struct {
	pgx.Rows
	opened opened
}

func (r *gatedRows) Next() (more bool) {
	r.opened.close(func() bool {
		more = r.Rows.Next()
		return !more
	})
	return more
}

func (r *gatedRows) Close() {
	r.opened.close(func() bool {
		r.Rows.Close()
		return true
	})
}

// gatedRow is the first of some rows.
type gatedRow struct {
	rows pgx.Rows
	err  error
}

func (r *gatedRow) Scan(to ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(to...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

type gatedBatch struct {
	pgx.BatchResults
	opened opened
}

func (b *gatedBatch) Close() (err error) {
	b.opened.close(func() bool {
		err = b.BatchResults.Close()
		return true
	})
	return err
}
