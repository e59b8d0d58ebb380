package ledger

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
)

//go:embed schema.sql
var schema string

// Ledger is a [payments.Ledger] on SQL.
type Ledger struct {
	dialect dialect
	write   *sql.DB // transactions
	read    *sql.DB // everything else; may be the same
	lost    <-chan struct{}
	closers []func() error // in the order of closing
}

var _ payments.Ledger = (*Ledger)(nil)

// dialect is where the databases differ.
type dialect struct {
	serial    string           // type of an ascending primary key
	forUpdate string           // suffix of a SELECT that locks its rows
	migrate   string           // run first in the transaction that makes the schema
	options   *sql.TxOptions   // of a writing transaction
	retryable func(error) bool // the transaction certainly was not committed
}

// Sharing says who else may use the database.
type Sharing uint8

const (
	// Exclusive claims the database for this instance: another one fails to
	// open it until this one has closed it or is dead.
	Exclusive Sharing = iota
	// Shared is for instances that coordinate through a shared lock and a
	// shared token store. It fails while an instance has an exclusive claim.
	Shared
)

// ErrClaimed says that another instance has claimed the database.
var ErrClaimed = errors.New("ledger: claimed by another instance")

// Open opens, and makes where it is not there, the ledger in a database:
// "" (embedded, lost at Close), "sqlite:FILE" or "postgres://…". The error
// wraps ErrClaimed where another instance has claimed it.
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

// Lost is closed when an exclusive claim was lost while the ledger is open: go
// no further. It is nil where that cannot happen.
func (l *Ledger) Lost() <-chan struct{} { return l.lost }

// Ping returns nil when the database answers.
func (l *Ledger) Ping(ctx context.Context) error {
	var one int
	if err := l.read.QueryRowContext(ctx, "SELECT 1").Scan(&one); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	return nil
}

// Close closes the database, and gives a claim back.
func (l *Ledger) Close() error {
	var errs []error
	for _, c := range l.closers {
		errs = append(errs, c())
	}
	l.closers = nil
	return errors.Join(errs...)
}

// AddMerchant makes the accounts of a merchant that has none.
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
