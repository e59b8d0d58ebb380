// Package joinent shows users of Ent how to write in the joined transaction. [Client] and the type
// driver below it are all that a service copies. Ent has generated package ent.
package joinent

import (
	"context"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/idemkeeper/idemkeeper/examples/sql/joinent/ent"
	"github.com/idemkeeper/idemkeeper/examples/sql/joinent/ent/payment"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// Client returns Ent's client on the transaction of the running handler. Its error is that of
// [sqlstore.Tx].
func Client(ctx context.Context) (*ent.Client, error) {
	tx, err := sqlstore.Tx(ctx)
	if err != nil {
		return nil, err
	}
	return ent.NewClient(ent.Driver(driver{entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx})})), nil
}

// driver works in a transaction. Ent's updates ask their driver for a transaction, and get the
// same one. Its Commit and Rollback do nothing, because the middleware ends the transaction.
type driver struct{ *entsql.Driver }

func (d driver) Tx(context.Context) (dialect.Tx, error) { return dialect.NopTx(d), nil }

func (d driver) BeginTx(ctx context.Context, _ *entsql.TxOptions) (dialect.Tx, error) {
	return d.Tx(ctx)
}

func (driver) Close() error { return nil }

// Payment is a payment. Its ID is the operation ID.
type Payment struct {
	ID     string
	Payer  string
	Amount int64
}

// Pay writes a payment and returns what its payer has paid in all.
func Pay(ctx context.Context, p Payment) (sum int64, err error) {
	client, err := Client(ctx)
	if err != nil {
		return 0, err
	}
	if err := client.Payment.Create().SetID(p.ID).SetPayer(p.Payer).SetAmount(p.Amount).Exec(ctx); err != nil {
		return 0, err
	}
	var of []struct{ Sum int64 }
	err = client.Payment.Query().Where(payment.Payer(p.Payer)).Aggregate(ent.Sum(payment.FieldAmount)).Scan(ctx, &of)
	if err != nil {
		return 0, err
	}
	return of[0].Sum, nil
}
