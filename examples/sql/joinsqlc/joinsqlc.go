// Package joinsqlc shows users of sqlc how to write in the joined transaction. sqlc has generated
// the packages stddb, for database/sql, and pgxdb, for pgx. A service needs one of them. Its
// transaction is the DBTX that New wants, so there is nothing to copy.
package joinsqlc

import (
	"context"

	"github.com/idemkeeper/idemkeeper/examples/sql/joinsqlc/pgxdb"
	"github.com/idemkeeper/idemkeeper/examples/sql/joinsqlc/stddb"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	pgxstore "github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx"
)

//go:generate env CGO_ENABLED=0 go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate

// Pay writes a payment and returns what its payer has paid in all. It is for services on
// database/sql.
func Pay(ctx context.Context, p stddb.Payment) (sum int64, err error) {
	tx, err := sqlstore.Tx(ctx)
	if err != nil {
		return 0, err
	}
	queries := stddb.New(tx)
	if err := queries.InsertPayment(ctx, stddb.InsertPaymentParams(p)); err != nil {
		return 0, err
	}
	return queries.SumOfPayer(ctx, p.Payer)
}

// PayWithPgx is Pay for services on pgx.
func PayWithPgx(ctx context.Context, p pgxdb.Payment) (sum int64, err error) {
	tx, err := pgxstore.Tx(ctx)
	if err != nil {
		return 0, err
	}
	queries := pgxdb.New(tx)
	if err := queries.InsertPayment(ctx, pgxdb.InsertPaymentParams(p)); err != nil {
		return 0, err
	}
	return queries.SumOfPayer(ctx, p.Payer)
}
