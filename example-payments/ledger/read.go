package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
)

const (
	paymentColumns = `id, operation_id, from_account, to_account, amount, currency, note, created_at`
	selectPayment  = `SELECT ` + paymentColumns + ` FROM payments`
	selectAccount  = `SELECT id, balance, currency FROM accounts`
)

// Payment implements [payments.Ledger].
func (l *Ledger) Payment(ctx context.Context, merchant, id string) (payments.Payment, error) {
	if !storable(id) {
		return payments.Payment{}, paymentUnknown()
	}
	p, err := scanPayment(l.db.Read.QueryRowContext(ctx, l.dialect.Bind(selectPayment+` WHERE id = ? AND merchant = ?`), id, merchant))
	if errors.Is(err, sql.ErrNoRows) {
		return p, paymentUnknown()
	}
	if err != nil {
		return p, fmt.Errorf("ledger: payment: %w", err)
	}
	return p, nil
}

// Payments implements [payments.Ledger].
func (l *Ledger) Payments(ctx context.Context, merchant string, q payments.Query) ([]payments.Payment, error) {
	where, args := ` WHERE merchant = ?`, []any{merchant}
	for column, value := range map[string]*string{"note": q.Note, "operation_id": q.Operation} {
		if value == nil {
			continue
		}
		if !storable(*value) {
			return []payments.Payment{}, nil
		}
		where, args = where+` AND `+column+` = ?`, append(args, *value)
	}
	args = append(args, q.Limit)
	rows, err := l.db.Read.QueryContext(ctx,
		l.dialect.Bind(selectPayment+where+` ORDER BY seq DESC LIMIT ?`), args...)
	if err != nil {
		return nil, fmt.Errorf("ledger: payments: %w", err)
	}
	defer rows.Close()
	list := []payments.Payment{}
	for rows.Next() {
		p, err := scanPayment(rows)
		if err != nil {
			return nil, fmt.Errorf("ledger: payments: %w", err)
		}
		list = append(list, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("ledger: payments: %w", err)
	}
	return list, nil
}

// Made is a payment and the merchant that it is of.
type Made struct {
	Merchant string
	payments.Payment
}

// MadeBy lists what an operation has paid, of any merchant and oldest first, at most ten. There is
// more than one only if the middleware is broken.
func (l *Ledger) MadeBy(ctx context.Context, operationID string) ([]Made, error) {
	rows, err := l.db.Read.QueryContext(ctx, l.dialect.Bind(`SELECT merchant, `+paymentColumns+` FROM payments WHERE operation_id = ? ORDER BY seq LIMIT 10`), operationID)
	if err != nil {
		return nil, fmt.Errorf("ledger: payments of an operation: %w", err)
	}
	defer rows.Close()
	var list []Made
	for rows.Next() {
		var m Made
		if m.Payment, err = scanPayment(rows, &m.Merchant); err != nil {
			return nil, fmt.Errorf("ledger: payments of an operation: %w", err)
		}
		list = append(list, m)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("ledger: payments of an operation: %w", err)
	}
	return list, nil
}

// Account implements [payments.Ledger].
func (l *Ledger) Account(ctx context.Context, merchant, id string) (payments.Account, error) {
	var a payments.Account
	if !storable(id) {
		return a, accountUnknown(id)
	}
	err := l.db.Read.QueryRowContext(ctx, l.dialect.Bind(selectAccount+` WHERE merchant = ? AND id = ?`), merchant, id).
		Scan(&a.ID, &a.Balance, &a.Currency)
	if errors.Is(err, sql.ErrNoRows) {
		return a, accountUnknown(id)
	}
	if err != nil {
		return a, fmt.Errorf("ledger: account: %w", err)
	}
	return a, nil
}

// Accounts implements [payments.Ledger].
func (l *Ledger) Accounts(ctx context.Context, merchant string) ([]payments.Account, error) {
	rows, err := l.db.Read.QueryContext(ctx, l.dialect.Bind(selectAccount+` WHERE merchant = ? ORDER BY id`), merchant)
	if err != nil {
		return nil, fmt.Errorf("ledger: accounts: %w", err)
	}
	list, err := scanAccounts(rows)
	if err != nil {
		return nil, fmt.Errorf("ledger: accounts: %w", err)
	}
	return list, nil
}

// storable reports whether the databases can store text. PostgreSQL answers other
// text with an error.
func storable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsRune(text, 0)
}

func paymentUnknown() error {
	return &payments.Error{Code: payments.CodePaymentUnknown, Detail: "There is no such payment."}
}

// scanAccounts reads and closes rows of selectAccount.
func scanAccounts(rows *sql.Rows) ([]payments.Account, error) {
	defer rows.Close()
	list := []payments.Account{}
	for rows.Next() {
		var a payments.Account
		if err := rows.Scan(&a.ID, &a.Balance, &a.Currency); err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, rows.Err()
}

// scanPayment reads a row of paymentColumns, after other columns.
func scanPayment(row interface{ Scan(...any) error }, before ...any) (payments.Payment, error) {
	p := payments.Payment{Status: payments.StatusSucceeded}
	var micros int64
	err := row.Scan(append(before, &p.ID, &p.OperationID, &p.From, &p.To, &p.Amount, &p.Currency, &p.Note, &micros)...)
	p.CreatedAt = time.UnixMicro(micros).UTC()
	return p, err
}
