package payments

import "errors"

// Code is why a request failed, as clients see it. The server package maps
// codes to statuses, in one table.
type Code string

// The codes of the domain.
const (
	CodeBodyInvalid       Code = "body-invalid"
	CodeAccountUnknown    Code = "account-unknown"
	CodeInsufficientFunds Code = "insufficient-funds"
	CodeCurrencyMismatch  Code = "currency-mismatch"
	CodePaymentUnknown    Code = "payment-unknown"
)

// Error is a failure that the client is told about. Its Detail is for the
// client and holds nothing that the client did not send.
type Error struct {
	Code   Code
	Detail string
}

// Error returns code and detail.
func (e *Error) Error() string { return "payments: " + string(e.Code) + ": " + e.Detail }

// ErrFenced says that the ledger refused a payment or a resolver because it
// has seen a later holder of the operation's lock.
var ErrFenced = errors.New("payments: a later holder has been at the ledger")
