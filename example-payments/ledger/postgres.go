package ledger

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib" // and driver "pgx"
)

const postgresConns = 20

var postgresDialect = dialect{
	serial:    "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
	forUpdate: " FOR UPDATE",
	// Instances that start together create the schema one after the other.
	migrate: "SELECT pg_advisory_xact_lock(7021790541236021249)",
	// If the insert of a fence had to wait for another transaction, the read
	// after it must see that transaction's fence.
	options:   &sql.TxOptions{Isolation: sql.LevelReadCommitted},
	retryable: postgresConflict,
}

// postgresConflict reports whether PostgreSQL rolled the transaction back in favour
// of another one (serialization failure, deadlock).
func postgresConflict(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (e.Code == "40001" || e.Code == "40P01")
}

// limitIdle makes the server end an idle transaction. A paused process would
// otherwise keep its accounts locked, and the resolver would wait for its fence.
func limitIdle(ctx context.Context, conn *pgx.Conn) error {
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
	db := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(limitIdle))
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

// claimPatience is how long a claim waits for an earlier one. The server may notice
// a moment late that the earlier instance has died.
const claimPatience = 3 * time.Second

// postgresClaim is an advisory lock on a connection of its own. The lock ends with
// the connection. It needs a direct connection, without a pooler in between.
type postgresClaim struct {
	lost  chan struct{} // closed when the connection broke, nil without a claim
	close func() error
}

// claimPostgres claims the ledger in the connection's schema. With Shared it only
// checks that no other instance has an exclusive claim.
func claimPostgres(ctx context.Context, url string, s Sharing) (postgresClaim, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return postgresClaim{}, fmt.Errorf("ledger: PostgreSQL: %w", err)
	}
	if err := tryClaim(ctx, conn, s); err != nil {
		return postgresClaim{}, errors.Join(err, closeConn(conn))
	}
	if s == Shared {
		return postgresClaim{close: func() error { return nil }}, closeConn(conn)
	}
	return watchClaim(ctx, conn), nil
}

func tryClaim(ctx context.Context, conn *pgx.Conn, s Sharing) error {
	var schema string
	if err := conn.QueryRow(ctx, "SELECT coalesce(current_schema(), '')").Scan(&schema); err != nil {
		return fmt.Errorf("ledger: claim: %w", err)
	}
	try := "SELECT pg_try_advisory_lock($1)"
	if s == Shared {
		try = "SELECT pg_try_advisory_lock_shared($1)"
	}
	for end := time.Now().Add(claimPatience); ; {
		var ok bool
		if err := conn.QueryRow(ctx, try, claimKey(schema)).Scan(&ok); err != nil {
			return fmt.Errorf("ledger: claim: %w", err)
		}
		switch {
		case ok:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%w: advisory lock %d is held", ErrClaimed, claimKey(schema))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// claimKey is the advisory lock of the ledger in a schema. The server keeps
// databases apart itself.
func claimKey(schema string) int64 {
	sum := sha256.Sum256([]byte("idemkeeper example-payments ledger\x00" + schema))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// watchClaim reads from the idle connection until it breaks or close is called.
func watchClaim(ctx context.Context, conn *pgx.Conn) postgresClaim {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := postgresClaim{lost: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var err error
		for err == nil { // a notice of the server ends the wait, too
			_, err = conn.WaitForNotification(ctx)
		}
		if ctx.Err() == nil {
			close(c.lost)
		}
	}()
	c.close = func() error {
		cancel()
		<-done
		return closeConn(conn)
	}
	return c
}

func closeConn(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return conn.Close(ctx)
}
