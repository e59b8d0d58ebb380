package payments

import "context"

// Bounds of a list, for both transports.
const (
	DefaultListLimit = 1_000
	MaxListLimit     = 10_000
)

// List returns up to q.Limit payments of a merchant, newest first, and whether
// there are more.
func List(ctx context.Context, l Ledger, merchant string, q Query) (list []Payment, more bool, err error) {
	limit := q.Limit
	q.Limit++
	list, err = l.Payments(ctx, merchant, q)
	if len(list) > limit {
		return list[:limit], true, err
	}
	return list, false, err
}
