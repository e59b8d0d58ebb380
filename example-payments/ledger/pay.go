package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
)

// Pay implements [payments.Ledger]. A payment that is refused for want of an
// account or of money leaves its fence behind all the same: an earlier holder
// must not make the payment after a later one has answered that there is none.
func (l *Ledger) Pay(ctx context.Context, merchant string, p payments.Payment, fence idem.Fence) error {
	var refused error
	err := l.inTx(ctx, func(tx *sql.Tx) error {
		if err := l.raise(ctx, tx, p.OperationID, fence, ""); err != nil {
			return err
		}
		accounts, err := l.lockAccounts(ctx, tx, merchant, p.From, p.To)
		if err != nil {
			return err
		}
		refused = refuse(accounts, p.Order)
		if refused == nil {
			err = move(ctx, tx, merchant, p)
		}
		return err // nil where the payment is refused: the fence stays
	})
	if err != nil {
		return fmt.Errorf("ledger: pay: %w", err)
	}
	return refused
}

// Settle implements [payments.Ledger].
func (l *Ledger) Settle(ctx context.Context, operationID string, fence, doubt idem.Fence) (*payments.Payment, error) {
	var found *payments.Payment
	err := l.inTx(ctx, func(tx *sql.Tx) error {
		found = nil
		if err := l.raise(ctx, tx, operationID, fence, doubt.Domain); err != nil {
			return err
		}
		p, err := scanPayment(tx.QueryRowContext(ctx,
			selectPayment+` WHERE operation_id = $1 ORDER BY seq LIMIT 1`, operationID))
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return nil
		case err != nil:
			return err
		}
		found = &p
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ledger: settle: %w", err)
	}
	return found, nil
}

// lockAccounts reads accounts and locks them in the order of their IDs, so
// that two payments in opposite directions do not wait for each other.
func (l *Ledger) lockAccounts(ctx context.Context, tx *sql.Tx, merchant, a, b string) (map[string]payments.Account, error) {
	rows, err := tx.QueryContext(ctx, selectAccount+` WHERE merchant = $1 AND id IN ($2, $3) ORDER BY id`+l.dialect.forUpdate,
		merchant, a, b)
	if err != nil {
		return nil, err
	}
	list, err := scanAccounts(rows)
	if err != nil {
		return nil, err
	}
	accounts := make(map[string]payments.Account, len(list))
	for _, x := range list {
		accounts[x.ID] = x
	}
	return accounts, nil
}

// refuse says why an order cannot be executed, or nil.
func refuse(accounts map[string]payments.Account, o payments.Order) error {
	for _, id := range []string{o.From, o.To} {
		a, ok := accounts[id]
		if !ok {
			return accountUnknown(id)
		}
		if a.Currency != o.Currency {
			return &payments.Error{Code: payments.CodeCurrencyMismatch,
				Detail: fmt.Sprintf("Account %q is not kept in %s.", id, o.Currency)}
		}
	}
	if accounts[o.From].Balance < o.Amount {
		return &payments.Error{Code: payments.CodeInsufficientFunds,
			Detail: fmt.Sprintf("Account %q does not hold the amount.", o.From)}
	}
	return nil
}

func accountUnknown(id string) error {
	return &payments.Error{Code: payments.CodeAccountUnknown, Detail: fmt.Sprintf("There is no account %q.", id)}
}

func move(ctx context.Context, tx *sql.Tx, merchant string, p payments.Payment) error {
	const add = `UPDATE accounts SET balance = balance + $1 WHERE merchant = $2 AND id = $3`
	if _, err := tx.ExecContext(ctx, add, -p.Amount, merchant, p.From); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, add, p.Amount, merchant, p.To); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO payments
		(id, operation_id, merchant, from_account, to_account, amount, currency, note, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		p.ID, p.OperationID, merchant, p.From, p.To, p.Amount, p.Currency, p.Note, p.CreatedAt.UnixMicro())
	return err
}
