package payments

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// StatusSucceeded is the status of every payment in the ledger.
const StatusSucceeded = "succeeded"

// Payment is a row of the ledger.
type Payment struct {
	ID          string
	OperationID string // of the execution, not shown to clients
	Order
	Status    string
	CreatedAt time.Time // UTC in whole microseconds, because every database keeps those
}

// NewPayment makes the payment for an order, under a fresh ID.
func NewPayment(operationID string, o Order, now time.Time) Payment {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand, since Go 1.24)
	return Payment{
		ID:          "pay_" + hex.EncodeToString(id[:]),
		OperationID: operationID,
		Order:       o,
		Status:      StatusSucceeded,
		CreatedAt:   now.UTC().Truncate(time.Microsecond),
	}
}

// MarshalJSON writes the payment for clients. The bytes are the same for a new
// payment and for the same payment read back from the ledger. A resolver relies on
// that.
func (p Payment) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		ID string `json:"id"`
		Order
		Status    string `json:"status"`
		CreatedAt string `json:"created_at"`
	}{p.ID, p.Order, p.Status, p.CreatedAt.UTC().Format("2006-01-02T15:04:05.000000Z")})
}

// Account is an account of a merchant.
type Account struct {
	ID       string `json:"id"`
	Balance  int64  `json:"balance"` // minor units
	Currency string `json:"currency"`
}

// OpeningAccounts are the accounts of a new merchant.
func OpeningAccounts() []Account {
	const balance, currency = 1_000_000, "USD"
	return []Account{{"alice", balance, currency}, {"bob", balance, currency}, {"carol", balance, currency}}
}

// Ledger keeps accounts and payments. It is safe for concurrent use, also by
// several processes on a shared database. Its errors are [*Error], wrap [ErrFenced],
// or come from the database. After an error from the database the payment may or may
// not have been made.
type Ledger interface {
	// Pay makes the payment in one transaction. It raises the stored fence of the
	// payment's operation, moves the money and stores the payment. It returns
	// ErrFenced and changes nothing if the fence is below the stored one, or of a
	// replaced lock domain. In joined mode there is no fence, and the transaction is
	// that of the request.
	Pay(ctx context.Context, merchant string, p Payment, fence driver.Fence) error

	// Settle raises the stored fence of the operation and looks for the
	// operation's payment, in one transaction. If the attempt in doubt ran in
	// another lock domain, that domain is over for this operation, even if the
	// ledger had never seen it. (nil, nil) means that there is no payment, and the
	// attempt in doubt cannot make one any more. Settle returns ErrFenced as Pay
	// does. In joined mode it only looks.
	Settle(ctx context.Context, in idem.Interrupted) (*Payment, error)

	// Payment returns a merchant's payment, or an Error with CodePaymentUnknown.
	Payment(ctx context.Context, merchant, id string) (Payment, error)
	// Payments lists a merchant's payments, newest first.
	Payments(ctx context.Context, merchant string, q Query) ([]Payment, error)
	// Account returns a merchant's account, or an Error with CodeAccountUnknown.
	Account(ctx context.Context, merchant, id string) (Account, error)
	// Accounts lists a merchant's accounts by ID.
	Accounts(ctx context.Context, merchant string) ([]Account, error)
	// Ping returns nil when the database answers.
	Ping(ctx context.Context) error
}

// Query selects payments.
type Query struct {
	Note      *string // exactly this note, nil for any
	Operation *string // exactly this operation ID, nil for any
	Limit     int     // greater than 0
}

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

// Code tells clients why a request failed. Packages server and rpc map codes to
// statuses, each in one table.
type Code string

// The codes of the domain.
const (
	CodeBodyInvalid       Code = "body-invalid"
	CodeAccountUnknown    Code = "account-unknown"
	CodeInsufficientFunds Code = "insufficient-funds"
	CodeCurrencyMismatch  Code = "currency-mismatch"
	CodePaymentUnknown    Code = "payment-unknown"
	// CodeLedgerUnavailable leaves open whether a payment was made.
	CodeLedgerUnavailable Code = "ledger-unavailable"
)

// Error is a failure for the client. Its Detail repeats only data that the client
// has sent.
type Error struct {
	Code   Code
	Detail string
}

// Error returns code and detail.
func (e *Error) Error() string { return "payments: " + string(e.Code) + ": " + e.Detail }

// ErrFenced means that the ledger has seen a later holder of the operation's lock.
var ErrFenced = errors.New("payments: the ledger has seen a later holder")

// CodeOf is the code of an error other than [*Error]. Inside of an execution it is one of the
// sample, because the middleware takes a code of its own for that of another service.
func CodeOf(ctx context.Context, err error) (code idem.Code, detail string) {
	if _, ok := idem.FromContext(ctx); ok {
		return idem.Code(CodeLedgerUnavailable), "The ledger did not answer. It is not known yet whether the payment was made; send it again with the same key."
	}
	code = idem.CodeUnavailable
	if errors.Is(err, ErrFenced) || errors.Is(err, driver.ErrLeaseLost) {
		code = idem.CodeOwnershipLost
	}
	return code, code.Detail()
}
