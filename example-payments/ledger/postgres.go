package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib" // and driver "pgx"
)

const (
	postgresConns = 20
	// migrateKey is the advisory lock under which instances that start
	// together make the schema one after the other.
	migrateKey = "SELECT pg_advisory_xact_lock(7021790541236021249)"
)

var postgresDialect = dialect{
	serial:    "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
	forUpdate: " FOR UPDATE",
	migrate:   migrateKey,
	// The fence is inserted where there is none and else read: the read has to
	// see what was committed while the insert waited.
	options:   &sql.TxOptions{Isolation: sql.LevelReadCommitted},
	retryable: postgresConflict,
}

// postgresConflict is what PostgreSQL reports of a transaction that it has
// rolled back for another one's sake: serialization failure, deadlock.
func postgresConflict(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (e.Code == "40001" || e.Code == "40P01")
}

// dropTheStuck makes the server end a transaction whose client does not go on:
// a paused process would keep its accounts locked for everybody, and the resolver
// waiting for its fence.
func dropTheStuck(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "SET idle_in_transaction_session_timeout = '3s'")
	return err
}

func openPostgres(ctx context.Context, url string, s Sharing) (*Ledger, error) {
	claim, err := claimPostgres(ctx, url, s)
	if err != nil {
		return nil, err
	}
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ledger: PostgreSQL: %w", err), claim.close())
	}
	db := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(dropTheStuck))
	db.SetMaxOpenConns(postgresConns)
	db.SetMaxIdleConns(postgresConns)
	db.SetConnMaxIdleTime(5 * time.Minute)
	if err := db.PingContext(ctx); err != nil {
		err = errors.Join(err, db.Close())
		return nil, errors.Join(fmt.Errorf("ledger: PostgreSQL: %w", err), claim.close())
	}
	return &Ledger{dialect: postgresDialect, write: db, read: db, lost: claim.lost,
		closers: []func() error{db.Close, claim.close}}, nil
}
