package broken

import (
	"context"
	"database/sql"
	"encoding/json"
	"log"
	"net/http"

	"github.com/idemkeeper/idemkeeper/examples/ownhandlers"
)

// Call is a call to another system about an order.
type Call func(ctx context.Context, order string) error

// EarlyOutbox writes the payment in the transaction of its key, and publishes the message about it before the transaction
// commits.
//
// After a rollback the message is out, and the repeat sends another one. The kit finds it at "POST bus/messages", killed after.
func EarlyOutbox(db *sql.DB, publish Call) *ownhandlers.Payments {
	return &ownhandlers.Payments{DB: db, Pay: func(ctx context.Context, tx *sql.Tx, body []byte) (ownhandlers.Answer, error) {
		o, err := insert(ctx, tx, body)
		if err != nil {
			return ownhandlers.Answer{}, err
		}
		return paid, publish(ctx, o.Order)
	}}
}

// BankBeforeCommit calls the bank within the transaction, so that a refusal of the bank rolls the payment back.
//
// The same crash that rolls the payment back leaves the charge. The kit finds it at "POST bank/captures", killed after.
func BankBeforeCommit(db *sql.DB, capture Call) *ownhandlers.Payments {
	return &ownhandlers.Payments{DB: db, Pay: func(ctx context.Context, tx *sql.Tx, body []byte) (ownhandlers.Answer, error) {
		o, err := insert(ctx, tx, body)
		if err != nil {
			return ownhandlers.Answer{}, err
		}
		return paid, capture(ctx, o.Order)
	}}
}

// SwallowedError logs an error of the bank and goes on, because a job reconciles captures every night.
//
// The client is told of a success that is none. The kit finds it at "POST bank/captures", connection cut.
func SwallowedError(db *sql.DB, capture Call) *ownhandlers.Payments {
	return &ownhandlers.Payments{DB: db, Pay: func(ctx context.Context, tx *sql.Tx, body []byte) (ownhandlers.Answer, error) {
		o, err := insert(ctx, tx, body)
		if err != nil {
			return ownhandlers.Answer{}, err
		}
		if err := capture(ctx, o.Order); err != nil {
			log.Print(err)
		}
		return paid, nil
	}}
}

var paid = ownhandlers.Answer{Status: http.StatusCreated, Body: []byte(`{"paid":true}`)}

func insert(ctx context.Context, tx *sql.Tx, body []byte) (o order, err error) {
	if err := json.Unmarshal(body, &o); err != nil {
		return o, err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO payments (key, amount) VALUES ($1, $2)", o.Order, o.Amount)
	return o, err
}
