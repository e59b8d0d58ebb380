// Package outbox tells another system of each payment, with River as the outbox. The payment, the
// job and the idempotency record commit in one transaction. So a job exists exactly if its payment
// exists, and no relay has to be written.
//
// # What is delivered
//
// River delivers the job at least once. It works a job again after a crash of the worker, so the
// receiver may get it twice. Every delivery carries the operation ID of the payment. It is the same
// in all attempts and all deliveries, and no other payment has it. The receiver keeps it and
// ignores what it has already seen. If the receiver takes idempotency keys, the operation ID is the
// key.
//
// A crash in the middle of a job is noticed after river.Config.RescueStuckJobsAfter, an hour by
// default. A job that fails river.Config.MaxAttempts times, 25 by default, is discarded. Watch for
// such jobs.
package outbox

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/idemkeeper/idemkeeper/idem"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	pgxstore "github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx"
)

// Paid is the job. It tells the receiver of a payment.
type Paid struct {
	OperationID string `json:"operation_id"`
	Payer       string `json:"payer"`
	Amount      int64  `json:"amount"`
}

// Kind is the name of the job in River.
func (Paid) Kind() string { return "paid" }

const (
	insertPayment = "INSERT INTO payments (id, payer, amount) VALUES ($1, $2, $3)"
	sumOfPayer    = "SELECT sum(amount) FROM payments WHERE payer = $1"
)

// Pay writes a payment and its job. It returns what the payer has paid in all. It is for services
// on pgx, with River's driver riverpgxv5.
func Pay(ctx context.Context, jobs *river.Client[pgx.Tx], payer string, amount int64) (sum int64, err error) {
	x, ok := idem.FromContext(ctx)
	if !ok {
		return 0, idem.ErrNoExecution
	}
	tx, err := pgxstore.Tx(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, insertPayment, x.OperationID, payer, amount); err != nil {
		return 0, err
	}
	if _, err := jobs.InsertTx(ctx, tx, Paid{x.OperationID, payer, amount}, nil); err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, sumOfPayer, payer).Scan(&sum)
	return sum, err
}

// PaySQL is Pay for services on database/sql, with River's driver riverdatabasesql.
func PaySQL(ctx context.Context, jobs *river.Client[*sql.Tx], payer string, amount int64) (sum int64, err error) {
	x, ok := idem.FromContext(ctx)
	if !ok {
		return 0, idem.ErrNoExecution
	}
	tx, err := sqlstore.Tx(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, insertPayment, x.OperationID, payer, amount); err != nil {
		return 0, err
	}
	if _, err := jobs.InsertTx(ctx, tx, Paid{x.OperationID, payer, amount}, nil); err != nil {
		return 0, err
	}
	err = tx.QueryRowContext(ctx, sumOfPayer, payer).Scan(&sum)
	return sum, err
}

// Teller works the jobs. It posts each of them to the receiver.
type Teller struct {
	river.WorkerDefaults[Paid]

	Client   *http.Client
	Receiver string // its URL
}

// Work delivers a job. River calls it again after an error.
func (t *Teller) Work(ctx context.Context, job *river.Job[Paid]) error {
	body, err := json.Marshal(job.Args)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.Receiver, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", job.Args.OperationID)
	resp, err := t.Client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode > 299 {
		return fmt.Errorf("the receiver answered %s", resp.Status)
	}
	return nil
}
