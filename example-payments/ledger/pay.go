package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/fence"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// Pay implements [payments.Ledger]. The fence is raised in the transaction of the
// money. It stays raised when the payment is refused for want of an account or of
// money. Otherwise an earlier holder could make the payment after a later one has
// answered with the refusal.
func (l *Ledger) Pay(ctx context.Context, merchant string, p payments.Payment, f driver.Fence) error {
	var refused error
	err := l.inTx(ctx, func(tx *sql.Tx) (err error) {
		if err := l.fences.Raise(ctx, tx, p.OperationID, f); err != nil {
			return err
		}
		refused, err = l.transfer(ctx, tx, merchant, p)
		return err // nil after a refusal, to commit the fence
	})
	if err != nil {
		return failed("pay", err)
	}
	return refused
}

// Settle implements [payments.Ledger].
func (l *Ledger) Settle(ctx context.Context, in idem.Interrupted) (found *payments.Payment, err error) {
	err = l.inTx(ctx, func(tx *sql.Tx) error {
		if err := l.fences.Settle(ctx, tx, in.OperationID, in.Fence, in.Attempt.Fence); err != nil {
			return err
		}
		found, err = l.paymentOf(ctx, tx, in.OperationID)
		return err
	})
	if err != nil {
		return nil, failed("settle", err)
	}
	return found, nil
}

// failed wraps an error. A stale fence is [payments.ErrFenced].
func failed(what string, err error) error {
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		return fmt.Errorf("ledger: %s: %w: %w", what, payments.ErrFenced, stale)
	}
	return fmt.Errorf("ledger: %s: %w", what, err)
}

// Joined is the ledger for an engine of [idem.NewJoined]. It pays in the transaction
// of the request, which the middleware commits together with the record. There is no
// fence, because a holder that comes too late cannot commit.
type Joined struct{ *Ledger }

// Pay implements [payments.Ledger].
func (j Joined) Pay(ctx context.Context, merchant string, p payments.Payment, _ driver.Fence) error {
	tx, err := sqlstore.Tx(ctx)
	if err != nil {
		return failed("pay", err)
	}
	refused, err := j.transfer(ctx, tx, merchant, p)
	if err != nil {
		return failed("pay", err)
	}
	return refused
}

// Settle implements [payments.Ledger]. The attempt in doubt has ended its transaction,
// so a look is enough.
func (j Joined) Settle(ctx context.Context, in idem.Interrupted) (*payments.Payment, error) {
	found, err := j.paymentOf(ctx, j.db.Write, in.OperationID)
	if err != nil {
		return nil, failed("settle", err)
	}
	return found, nil
}

// transfer makes a payment in a transaction. refused says why it has not.
func (l *Ledger) transfer(ctx context.Context, tx *sql.Tx, merchant string, p payments.Payment) (refused, err error) {
	accounts, err := l.lockAccounts(ctx, tx, merchant, p.From, p.To)
	if err != nil {
		return nil, err
	}
	if refused = refuse(accounts, p.Order); refused != nil {
		return refused, nil
	}
	return nil, l.move(ctx, tx, merchant, p)
}

// querier is a pool or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// paymentOf returns the first payment of an operation, or nil.
func (l *Ledger) paymentOf(ctx context.Context, q querier, operationID string) (*payments.Payment, error) {
	p, err := scanPayment(q.QueryRowContext(ctx,
		l.dialect.Bind(selectPayment+` WHERE operation_id = ? ORDER BY seq LIMIT 1`), operationID))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &p, nil
}

// lockAccounts reads two accounts and locks them in the order of their IDs. So two
// payments in opposite directions cannot deadlock.
func (l *Ledger) lockAccounts(ctx context.Context, tx *sql.Tx, merchant, a, b string) (map[string]payments.Account, error) {
	rows, err := tx.QueryContext(ctx, l.dialect.Bind(selectAccount+` WHERE merchant = ? AND id IN (?, ?) ORDER BY id`+l.dialect.ForUpdate),
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

// refuse returns the reason to refuse an order, or nil.
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

func (l *Ledger) move(ctx context.Context, tx *sql.Tx, merchant string, p payments.Payment) error {
	add := l.dialect.Bind(`UPDATE accounts SET balance = balance + ? WHERE merchant = ? AND id = ?`)
	if _, err := tx.ExecContext(ctx, add, -p.Amount, merchant, p.From); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, add, p.Amount, merchant, p.To); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, l.dialect.Bind(`INSERT INTO payments
		(id, operation_id, merchant, from_account, to_account, amount, currency, note, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`),
		p.ID, p.OperationID, merchant, p.From, p.To, p.Amount, p.Currency, p.Note, p.CreatedAt.UnixMicro())
	return err
}
