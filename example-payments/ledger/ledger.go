// Package ledger keeps accounts, payments and fences in SQL. The database is
// SQLite in memory (lost at exit), a SQLite file, or PostgreSQL.
//
// Every payment is one transaction. It first raises the fence of the payment's
// operation, and is refused if a later holder has been there. This keeps the
// answer of [Ledger.Settle] true. Once Settle has found no payment, an earlier
// holder that wakes up cannot make one.
//
// Fences are comparable within one lock domain. A fence of another domain
// replaces the stored one, and the replaced domain is refused from then on.
//
// The ledger does not remove duplicates. It stores the operation ID with each
// payment, and the ID is not unique.
package ledger

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
)

//go:embed schema.sql
var schema string

// Ledger is a [payments.Ledger] on SQL.
type Ledger struct {
	dialect dialect
	write   *sql.DB // for transactions
	read    *sql.DB // for everything else, may be the same
	lost    <-chan struct{}
	closers []func() error // in the order of closing
}

var _ payments.Ledger = (*Ledger)(nil)

// dialect holds the differences between the databases.
type dialect struct {
	serial    string           // type of an ascending primary key
	forUpdate string           // suffix of a SELECT to lock its rows
	migrate   string           // runs before the schema, in the same transaction
	options   *sql.TxOptions   // of a writing transaction
	retryable func(error) bool // the transaction was certainly rolled back
}

// Sharing says whether other instances may use the database.
type Sharing uint8

const (
	// Exclusive claims the database for this instance. Other instances cannot
	// open it until this one has closed it or died.
	Exclusive Sharing = iota
	// Shared is for instances with a shared lock and a shared token store. It
	// fails while another instance has an exclusive claim.
	Shared
)

// ErrClaimed means that another instance has claimed the database.
var ErrClaimed = errors.New("ledger: claimed by another instance")

// Open opens the ledger in a database, and creates it if it is missing. The
// database is "" (embedded, lost at Close), "sqlite:FILE" or "postgres://…". The
// error wraps ErrClaimed if another instance has claimed the database.
func Open(ctx context.Context, database string, s Sharing) (*Ledger, error) {
	var l *Ledger
	var err error
	switch file, isSQLite := strings.CutPrefix(database, "sqlite:"); {
	case database == "":
		l, err = openEmbedded(ctx)
	case isSQLite && file != "":
		l, err = openFile(ctx, file, s)
	case strings.HasPrefix(database, "postgres://"), strings.HasPrefix(database, "postgresql://"):
		l, err = openPostgres(ctx, database, s)
	default:
		return nil, errors.New("ledger: the database is neither sqlite:FILE nor postgres://…")
	}
	if err != nil {
		return nil, err
	}
	if err := l.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("ledger: make the schema: %w", err), l.Close())
	}
	return l, nil
}

func (l *Ledger) migrate(ctx context.Context) error {
	return l.inTx(ctx, func(tx *sql.Tx) error {
		if l.dialect.migrate != "" {
			if _, err := tx.ExecContext(ctx, l.dialect.migrate); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, strings.ReplaceAll(schema, "{{serial}}", l.dialect.serial))
		return err
	})
}

// Lost is closed when an exclusive claim was lost while the ledger was open. The
// service must stop then. It is nil if the claim cannot be lost.
func (l *Ledger) Lost() <-chan struct{} { return l.lost }

// Ping returns nil when the database answers.
func (l *Ledger) Ping(ctx context.Context) error {
	var one int
	if err := l.read.QueryRowContext(ctx, "SELECT 1").Scan(&one); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	return nil
}

// Close closes the database and gives the claim back.
func (l *Ledger) Close() error {
	var errs []error
	for _, c := range l.closers {
		errs = append(errs, c())
	}
	l.closers = nil
	return errors.Join(errs...)
}

// AddMerchant creates the missing accounts of a merchant.
func (l *Ledger) AddMerchant(ctx context.Context, merchant string) error {
	err := l.inTx(ctx, func(tx *sql.Tx) error {
		for _, a := range payments.OpeningAccounts() {
			_, err := tx.ExecContext(ctx, `INSERT INTO accounts (merchant, id, currency, opening, balance)
				VALUES ($1, $2, $3, $4, $5) ON CONFLICT (merchant, id) DO NOTHING`,
				merchant, a.ID, a.Currency, a.Balance, a.Balance)
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
		if err == nil || !l.dialect.retryable(err) {
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
	tx, err := l.write.BeginTx(ctx, l.dialect.options)
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
	rows, err := l.read.QueryContext(ctx, `
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
