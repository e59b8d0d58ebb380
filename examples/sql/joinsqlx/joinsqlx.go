// Package joinsqlx shows users of sqlx how to write in the joined transaction. [Tx] is all that a
// service copies.
//
// A handle from [Tx] does not know its driver. Named queries need the kind of placeholders, so a
// service on PostgreSQL says once, before it serves:
//
//	sqlx.BindDriver("", sqlx.DOLLAR)
//
// MySQL and SQLite do not need that.
package joinsqlx

import (
	"context"

	"github.com/jmoiron/sqlx"
	"github.com/jmoiron/sqlx/reflectx"

	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// Tx returns sqlx's handle on the transaction of the running handler. Its error is that of
// [sqlstore.Tx]. Do not call its Commit or Rollback.
func Tx(ctx context.Context) (*sqlx.Tx, error) {
	tx, err := sqlstore.Tx(ctx)
	if err != nil {
		return nil, err
	}
	return &sqlx.Tx{Tx: tx, Mapper: mapper}, nil
}

// mapper finds the fields of structs as sqlx does by default. Named queries need it.
var mapper = reflectx.NewMapperFunc("db", sqlx.NameMapper)

// Payment is a row of the table payments.
type Payment struct {
	ID     string `db:"id"`
	Payer  string `db:"payer"`
	Amount int64  `db:"amount"`
}

// Pay writes a payment and returns what its payer has paid in all.
func Pay(ctx context.Context, p Payment) (sum int64, err error) {
	tx, err := Tx(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := tx.NamedExecContext(ctx, "INSERT INTO payments (id, payer, amount) VALUES (:id, :payer, :amount)", p); err != nil {
		return 0, err
	}
	err = tx.GetContext(ctx, &sum, "SELECT sum(amount) FROM payments WHERE payer = $1", p.Payer)
	return sum, err
}
