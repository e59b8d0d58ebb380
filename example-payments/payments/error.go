package payments

import (
	"errors"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Code is why a request failed, as clients see it. Packages server and rpc map
// codes to statuses, each in one table.
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

// CodeOf reads an error that is not an [*Error]. All of these leave open whether
// something happened, and the codes' details say so.
func CodeOf(err error) idem.Code {
	if errors.Is(err, ErrFenced) || errors.Is(err, idem.ErrLeaseLost) {
		return idem.CodeOwnershipLost
	}
	return idem.CodeUnavailable
}
