// Package ledger keeps accounts and payments in SQL. The database is an embedded SQLite
// (lost at exit), a SQLite file, PostgreSQL, MySQL or MariaDB.
//
// Every payment is one transaction. There are two kinds of it:
//
//   - [Joined] writes in the transaction that the middleware began. The record of the
//     key commits with the money, so nothing else is needed.
//   - [Ledger] writes in a transaction of its own. It first raises the fence of the
//     payment's operation (package fence), and is refused if a later holder has been
//     there. This keeps the answer of [Ledger.Settle] true. Once Settle has found no
//     payment, an earlier holder that wakes up cannot make one.
//
// The ledger does not remove duplicates. It stores the operation ID with each
// payment, and the ID is not unique.
package ledger

import (
	"context"
	"database/sql"
	_ "embed" // the schema
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/fence"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/internal/tlsfiles"
)

//go:embed schema.sql
var schema string

// Ledger is a [payments.Ledger] with transactions of its own.
type Ledger struct {
	dialect *sqldialect.Dialect
	db      *database.DB
	locks   *database.DB // for session locks, which need connections of their own
	fences  *fence.Table
	lost    <-chan struct{}
	closers []func() error // in the order of opening
}

var _ payments.Ledger = (*Ledger)(nil)

// Sharing says whether other instances may use the database.
type Sharing uint8

const (
	// Exclusive claims the database for this instance. Other instances cannot
	// open it until this one has closed it or died.
	Exclusive Sharing = iota
	// Shared is for instances that share the keys. It fails while another instance
	// has an exclusive claim.
	Shared
)

const (
	// connections is the greatest number of connections to a server.
	connections = 20
	// idleTransaction is how long a server keeps a transaction of a paused process,
	// which locks accounts. The resolver waits for its fence.
	idleTransaction = 3 * time.Second
	// fenceTable has been the name before package fence.
	fenceTable = "payment_fences"
)

// Open opens the ledger in a database, and creates it if it is missing. The
// database is "" (embedded, lost at Close), "sqlite:FILE", "postgres://…" or
// "mysql://…". The error wraps ErrClaimed if another instance has claimed the
// database, and does not show passwords.
func Open(ctx context.Context, name string, s Sharing, opts ...Option) (_ *Ledger, err error) {
	l := &Ledger{}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	o := database.Options{Connections: connections, Create: true, IdleTransaction: idleTransaction}
	for _, opt := range opts {
		opt(&o)
	}
	if err := l.connect(ctx, name, s, o); err != nil {
		return nil, err
	}
	if l.fences, err = fence.New(l.dialect.Name, fence.WithName(fenceTable)); err != nil {
		return nil, err
	}
	if err := l.migrate(ctx); err != nil {
		return nil, fmt.Errorf("ledger: make the schema: %w", err)
	}
	return l, nil
}

// Option is an option of [Open].
type Option func(*database.Options)

// WithTLS names the files for the connections to a server.
func WithTLS(files tlsfiles.Files) Option { return func(o *database.Options) { o.TLS = files } }

// WithWrappers changes what connects to a server, see [database.Options].
func WithWrappers(w database.Options) Option {
	return func(o *database.Options) { o.PGX, o.Connector = w.PGX, w.Connector }
}

// connect opens and claims the database.
func (l *Ledger) connect(ctx context.Context, name string, s Sharing, o database.Options) (err error) {
	file, isFile := strings.CutPrefix(name, "sqlite:")
	switch {
	case name == "":
		name, err = l.makeEmbedded()
	case isFile && file != "":
		name, err = l.claimFile(file, s)
	}
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	l.db, err = database.Open(name, o)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	l.dialect = sqldialect.Of(l.db.Dialect)
	l.onClose(l.db.Close)
	if err := l.db.Write.PingContext(ctx); err != nil {
		return fmt.Errorf("ledger: %s: %w", l.db.Name, err)
	}
	if l.dialect.Locks == nil {
		return nil
	}
	if l.locks, err = database.Open(name, database.Options{Connections: 2, TLS: o.TLS}); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	l.onClose(l.locks.Close)
	lock, err := claimServer(ctx, l.locks.Write, l.dialect.Locks, s)
	if lock != nil {
		l.lost = lock.lost
		l.onClose(func() error { lock.free(); return nil })
	}
	return err
}

// onClose adds what Close does, before what was added earlier.
func (l *Ledger) onClose(do func() error) { l.closers = append(l.closers, do) }

func (l *Ledger) migrate(ctx context.Context) error {
	const number = 7021790541236021249 // of this schema, among those that share the database
	err := l.inTx(ctx, func(tx *sql.Tx) error {
		for _, s := range append(l.dialect.Alone(number), l.dialect.Tables(schema)...) {
			if _, err := tx.ExecContext(ctx, s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return l.fences.Migrate(ctx, l.db.Write)
}

// Database is where the ledger is, for a token store beside it.
func (l *Ledger) Database() *database.DB { return l.db }

// Lost is closed when an exclusive claim was lost while the ledger was open. The
// service must stop then. It is nil if the claim cannot be lost.
func (l *Ledger) Lost() <-chan struct{} { return l.lost }

// Ping returns nil when the database answers.
func (l *Ledger) Ping(ctx context.Context) error {
	var one int
	if err := l.db.Read.QueryRowContext(ctx, "SELECT 1").Scan(&one); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	return nil
}

// Close closes the database and gives the claim back.
func (l *Ledger) Close() error {
	var errs []error
	for _, c := range slices.Backward(l.closers) {
		errs = append(errs, c())
	}
	l.closers = nil
	return errors.Join(errs...)
}

// AddMerchant creates the missing accounts of a merchant.
func (l *Ledger) AddMerchant(ctx context.Context, merchant string) error {
	err := l.inTx(ctx, func(tx *sql.Tx) error {
		for _, a := range payments.OpeningAccounts() {
			_, err := tx.ExecContext(ctx, l.dialect.Bind(`INSERT INTO accounts (merchant, id, currency, opening, balance)
				VALUES (?, ?, ?, ?, ?) `+l.dialect.Keep("id")), merchant, a.ID, a.Currency, a.Balance, a.Balance)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("ledger: accounts of %s: %w", merchant, err)
	}
	return nil
}

// inTx runs do in a transaction. It tries again, until ctx ends, if the database
// rolled the transaction back in favour of another one.
func (l *Ledger) inTx(ctx context.Context, do func(tx *sql.Tx) error) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := l.once(ctx, do)
		if err == nil || !l.dialect.Retry(err) {
			return err
		}
		select {
		case <-time.After(rand.N(pause) + pause): //nolint:gosec // spreads retries, no secret
		case <-ctx.Done():
			return err
		}
	}
}

func (l *Ledger) once(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := l.db.Write.BeginTx(ctx, l.dialect.TxOptions())
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback() // do's error says why
		return err
	}
	return tx.Commit()
}

// Audit checks that every account holds its opening balance, plus all payments to
// it, less all payments from it. The error names the accounts with a difference.
// Payments may go on meanwhile, because one statement sees one moment.
func (l *Ledger) Audit(ctx context.Context) error {
	rows, err := l.db.Read.QueryContext(ctx, `
		SELECT a.merchant, a.id, a.balance, a.opening
		       + coalesce((SELECT sum(p.amount) FROM payments p WHERE p.merchant = a.merchant AND p.to_account = a.id), 0)
		       - coalesce((SELECT sum(p.amount) FROM payments p WHERE p.merchant = a.merchant AND p.from_account = a.id), 0)
		FROM accounts a`)
	if err != nil {
		return fmt.Errorf("ledger: audit: %w", err)
	}
	defer rows.Close()
	var wrong strings.Builder
	for rows.Next() {
		var merchant, id string
		var balance, booked int64
		if err := rows.Scan(&merchant, &id, &balance, &booked); err != nil {
			return fmt.Errorf("ledger: audit: %w", err)
		}
		if balance != booked {
			fmt.Fprintf(&wrong, " %s/%s holds %d, its payments make %d;", merchant, id, balance, booked)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("ledger: audit: %w", err)
	}
	if wrong.Len() > 0 {
		return fmt.Errorf("ledger: audit:%s", wrong.String())
	}
	return nil
}
