package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
)

// Pay implements [payments.Ledger]. The fence is raised in the transaction of the
// money. It stays raised when the payment is refused for want of an account or of
// money. Otherwise an earlier holder could make the payment after a later one has
// answered with the refusal.
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
		return err // nil after a refusal, to commit the fence
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

// lockAccounts reads two accounts and locks them in the order of their IDs. So two
// payments in opposite directions cannot deadlock.
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

// fenceRow is the highest fence seen for an operation.
type fenceRow struct {
	idem.Fence
	past []string // replaced domains, refused for good
}

// raise brings the operation's fence row to f and locks the row until tx ends. It
// returns ErrFenced if a later holder has been there. The caller rolls tx back on
// any error. The domain gone is refused from now on, unless it is f's own.
func (l *Ledger) raise(ctx context.Context, tx *sql.Tx, operationID string, f idem.Fence, gone string) error {
	if f.Domain == "" || f.Token == 0 || f.Token > math.MaxInt64 {
		return fmt.Errorf("ledger: the fence %q cannot be compared", f)
	}
	first := fenceRow{Fence: f}
	first.retire(gone)
	inserted, err := insertFence(ctx, tx, operationID, &first)
	if err != nil || inserted {
		return err
	}
	row, err := l.lockFence(ctx, tx, operationID)
	if err != nil {
		return err
	}
	if err := row.advance(f); err != nil {
		return err
	}
	row.retire(gone)
	_, err = tx.ExecContext(ctx, `UPDATE payment_fences SET domain = $1, token = $2, past = $3 WHERE operation_id = $4`,
		row.Domain, int64(row.Token), row.pastJSON(), operationID)
	return err
}

// advance replaces the row's fence by f, or returns ErrFenced.
func (r *fenceRow) advance(f idem.Fence) error {
	if slices.Contains(r.past, f.Domain) || f.Before(r.Fence) {
		return fmt.Errorf("%w: %s after %s", payments.ErrFenced, f, r.Fence)
	}
	if f.Domain != r.Domain {
		r.past = append(r.past, r.Domain)
	}
	r.Fence = f
	return nil
}

func (r *fenceRow) retire(domain string) {
	if domain != "" && domain != r.Domain && !slices.Contains(r.past, domain) {
		r.past = append(r.past, domain)
	}
}

func (r *fenceRow) pastJSON() string {
	b, _ := json.Marshal(r.past) //nolint:errchkjson // strings always marshal
	return string(b)
}

func insertFence(ctx context.Context, tx *sql.Tx, operationID string, r *fenceRow) (bool, error) {
	res, err := tx.ExecContext(ctx, `INSERT INTO payment_fences (operation_id, domain, token, past)
		VALUES ($1, $2, $3, $4) ON CONFLICT (operation_id) DO NOTHING`,
		operationID, r.Domain, int64(r.Token), r.pastJSON())
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

func (l *Ledger) lockFence(ctx context.Context, tx *sql.Tx, operationID string) (fenceRow, error) {
	var r fenceRow
	var token int64
	var past string
	err := tx.QueryRowContext(ctx, `SELECT domain, token, past FROM payment_fences WHERE operation_id = $1`+l.dialect.forUpdate,
		operationID).Scan(&r.Domain, &token, &past)
	if err != nil {
		return fenceRow{}, err
	}
	r.Token = uint64(token)
	if err := json.Unmarshal([]byte(past), &r.past); err != nil {
		return fenceRow{}, fmt.Errorf("ledger: fence of %s: %w", operationID, err)
	}
	return r, nil
}
