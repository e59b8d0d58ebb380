package payments

import (
	"context"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Ledger keeps accounts and payments. It is safe for concurrent use, also by
// several processes where its database is shared. Its errors are [*Error],
// wrap [ErrFenced], or are of the database; after one of the database it is
// open whether a payment was made.
type Ledger interface {
	// Pay makes the payment in one transaction: it raises the fence kept for
	// the payment's operation to fence, moves the money and stores the
	// payment. It returns ErrFenced, and changes nothing, where the fence is
	// below the one kept, or of a lock domain that has been succeeded.
	Pay(ctx context.Context, merchant string, p Payment, fence idem.Fence) error

	// Settle raises the fence kept for the operation to fence, and looks for
	// the operation's payment, in one transaction. Where the attempt in doubt
	// ran in another lock domain, that domain is over for this operation, even
	// where the ledger had never heard of it. Where Settle returns (nil, nil),
	// there is no payment and none of that attempt can come any more. It
	// returns ErrFenced as Pay does.
	Settle(ctx context.Context, operationID string, fence, doubt idem.Fence) (*Payment, error)

	// Payment returns a merchant's payment, or an Error with
	// CodePaymentUnknown.
	Payment(ctx context.Context, merchant, id string) (Payment, error)
	// Payments lists a merchant's payments, newest first.
	Payments(ctx context.Context, merchant string, q Query) ([]Payment, error)
	// Account returns a merchant's account, or an Error with
	// CodeAccountUnknown.
	Account(ctx context.Context, merchant, id string) (Account, error)
	// Accounts lists a merchant's accounts by ID.
	Accounts(ctx context.Context, merchant string) ([]Account, error)
	// Ping returns nil when the database answers.
	Ping(ctx context.Context) error
}

// Query selects payments.
type Query struct {
	Note  *string // exactly this note; nil: any
	Limit int     // at most so many; > 0
}
