package ledger

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"time"
)

// inTx runs do in a transaction, and again where the database is certain to
// have rolled it back for the sake of another one, until ctx ends.
func (l *Ledger) inTx(ctx context.Context, do func(tx *sql.Tx) error) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := l.once(ctx, do)
		if err == nil || !l.dialect.retryable(err) {
			return err
		}
		select {
		case <-time.After(rand.N(pause) + pause): //nolint:gosec // spreads retries, no secret
		case <-ctx.Done():
			return err
		}
	}
}

func (l *Ledger) once(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := l.write.BeginTx(ctx, l.dialect.options)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback() // do's error says more
		return err
	}
	return tx.Commit()
}
