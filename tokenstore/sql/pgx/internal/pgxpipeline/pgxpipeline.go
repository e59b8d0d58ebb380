// Package pgxpipeline sends statements together with BEGIN and COMMIT by pgx, with and without database/sql.
package pgxpipeline

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemkeeper/idemkeeper/internal/sqlpipeline"
)

// BeginRow sends BEGIN and a statement. An error after BEGIN leaves the transaction open.
func BeginRow(ctx context.Context, conn *pgx.Conn, opts pgx.TxOptions, st *sqlpipeline.Statement) (pgx.Tx, error) {
	var b pgx.Batch
	b.BeginTx(opts)
	b.Queue(st.Text, st.Args...)
	results := conn.SendBatch(ctx, &b)
	tx := results.Tx()
	st.Sent = true
	_, err := results.Exec()
	if err == nil {
		err = results.QueryRow().Scan(st.To...)
	}
	return tx, Standard(cmp.Or(err, results.Close()))
}

// RowCommit sends a statement and COMMIT. After an error the server skips all up to the end of the pipeline, COMMIT
// included. Only an error of the statement itself proves that: one that ends the session may be that of COMMIT. executed says
// that the server has executed COMMIT, whatever its outcome.
func RowCommit(ctx context.Context, conn *pgx.Conn, st *sqlpipeline.Statement) (executed bool, err error) {
	var b pgx.Batch
	b.Queue(st.Text, st.Args...)
	b.Queue("commit")
	results := conn.SendBatch(ctx, &b)
	st.Sent = true
	if err = results.QueryRow().Scan(st.To...); err != nil {
		_ = results.Close() // the connection is closed if that fails
		var refused *pgconn.PgError
		st.Skipped = errors.As(err, &refused) && refused.SeverityUnlocalized == "ERROR"
		return false, Standard(err)
	}
	tag, err := results.Exec()
	if err == nil && tag.String() == "ROLLBACK" {
		err = pgx.ErrTxCommitRollback
	}
	return true, Standard(cmp.Or(err, results.Close()))
}

// levels are the isolation levels of PostgreSQL.
var levels = map[sql.IsolationLevel]pgx.TxIsoLevel{
	sql.LevelDefault:         "",
	sql.LevelReadUncommitted: pgx.ReadUncommitted,
	sql.LevelReadCommitted:   pgx.ReadCommitted,
	sql.LevelRepeatableRead:  pgx.RepeatableRead,
	sql.LevelSnapshot:        pgx.RepeatableRead,
	sql.LevelSerializable:    pgx.Serializable,
}

// Options are those of a transaction. They leave it to the database whether it takes writes.
func Options(level sql.IsolationLevel) (pgx.TxOptions, error) {
	iso, ok := levels[level]
	if !ok {
		return pgx.TxOptions{}, fmt.Errorf("PostgreSQL has no isolation level %v", level)
	}
	return pgx.TxOptions{IsoLevel: iso}, nil
}

// Standard gives two errors of pgx their value in database/sql.
func Standard(err error) error {
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return sql.ErrNoRows
	case errors.Is(err, pgx.ErrTxClosed):
		return sql.ErrTxDone
	}
	return err
}

// CloseTimeout bounds the good-bye of a connection that is closed.
const CloseTimeout = time.Second
