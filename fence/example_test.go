package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/fence"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// pay is the ledger's side of a handler. A holder that lost its lock gets a StaleError.
func pay(ctx context.Context, db *sql.DB, fences *fence.Table, amount int64) error {
	execution, ok := idem.FromContext(ctx)
	if !ok {
		return idem.ErrNoExecution
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := fences.Raise(ctx, tx, execution.OperationID, execution.Fence); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO payments (op, amount) VALUES ($1, $2)", execution.OperationID, amount); err != nil {
		return err
	}
	return tx.Commit()
}

// resolver tells what became of a payment in doubt, and keeps it from being made later.
func resolver(db *sql.DB, fences *fence.Table, answer func(paid int64) idem.Response) idem.Resolver {
	return func(ctx context.Context, in idem.Interrupted) (idem.Resolution, error) {
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return idem.StillUnknown(), err
		}
		defer tx.Rollback()
		if err := fences.Settle(ctx, tx, in.OperationID, in.Fence, in.Attempt.Fence); err != nil {
			return idem.StillUnknown(), err
		}
		var amount int64
		err = tx.QueryRowContext(ctx, "SELECT amount FROM payments WHERE op = $1", in.OperationID).Scan(&amount)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return idem.StillUnknown(), err
		}
		if err := tx.Commit(); err != nil {
			return idem.StillUnknown(), err
		}
		if amount == 0 {
			return idem.NotApplied(), nil
		}
		return idem.Applied(answer(amount)), nil
	}
}

func Example() {
	fences, err := fence.New(dialect.PostgreSQL, fence.WithName("payment_fences"))
	fmt.Println(fences != nil, err)
	_, _ = pay, resolver
	// Output: true <nil>
}
