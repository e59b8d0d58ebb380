package payments

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"time"
)

// Order is a request for a payment; see [Order.Validate].
type Order struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Amount   int64  `json:"amount"`   // minor units, > 0
	Currency string `json:"currency"` // ISO 4217, three capital letters
	Note     string `json:"note"`
}

// StatusSucceeded is the only status of a payment that is in the ledger.
const StatusSucceeded = "succeeded"

// Payment is a row of the ledger.
type Payment struct {
	ID          string
	OperationID string // of the execution that made it; not shown to clients
	Order
	Status    string
	CreatedAt time.Time // UTC, whole microseconds: what every database keeps
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

// MarshalJSON writes the payment as clients see it. The same payment gives the
// same bytes, now or read back from the ledger: a resolver relies on it.
func (p Payment) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		ID string `json:"id"`
		Order
		Status    string `json:"status"`
		CreatedAt string `json:"created_at"`
	}{p.ID, p.Order, p.Status, p.CreatedAt.UTC().Format("2006-01-02T15:04:05.000000Z")})
}

// Account is an account of a merchant and what is in it.
type Account struct {
	ID       string `json:"id"`
	Balance  int64  `json:"balance"` // minor units
	Currency string `json:"currency"`
}

// OpeningAccounts is what the ledger of a new merchant holds.
func OpeningAccounts() []Account {
	const balance, currency = 1_000_000, "USD"
	return []Account{{"alice", balance, currency}, {"bob", balance, currency}, {"carol", balance, currency}}
}
