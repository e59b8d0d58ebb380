package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
)

// fenceRow is what is kept for an operation.
type fenceRow struct {
	idem.Fence
	past []string // domains that were succeeded: refused for good
}

// raise brings the operation's fence row to f as part of tx, which has to be
// rolled back on an error: ErrFenced where a later holder has been there. It
// locks the row until tx ends. gone, where it is not f's own domain, is
// refused from now on.
func (l *Ledger) raise(ctx context.Context, tx *sql.Tx, operationID string, f idem.Fence, gone string) error {
	if f.Domain == "" || f.Token == 0 || f.Token > math.MaxInt64 {
		return fmt.Errorf("ledger: %q is no fence to compare by", f)
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

// advance decides whether f may succeed what the row holds.
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

// pastJSON cannot fail: strings always marshal.
func (r *fenceRow) pastJSON() string {
	b, err := json.Marshal(r.past)
	if err != nil {
		panic(err)
	}
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
