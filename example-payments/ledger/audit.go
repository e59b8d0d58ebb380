package ledger

import (
	"context"
	"fmt"
	"strings"
)

// Audit proves the books: every account holds what it opened with, plus what
// came in, less what went out. It returns nil, or an error that names the
// accounts that do not add up. It looks at one moment, so it holds while
// payments are made.
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
			fmt.Fprintf(&wrong, " %s/%s holds %d, booked are %d;", merchant, id, balance, booked)
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
