package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// claimPatience is how long a claim waits for a predecessor's: the server may
// notice a moment late that its process is gone.
const claimPatience = 3 * time.Second

// postgresClaim is an advisory lock, held by a connection of its own for as
// long as that lives. It needs a direct connection, not a pooler that shares
// sessions.
type postgresClaim struct {
	lost  chan struct{} // closed when the connection broke; nil where nothing is claimed
	close func() error
}

// claimPostgres claims the ledger in the connection's schema. Shared claims
// nothing: it makes sure that nobody has an exclusive claim now.
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

// claimKey is the advisory lock of the ledger in a schema; the server tells
// databases apart by itself.
func claimKey(schema string) int64 {
	sum := sha256.Sum256([]byte("idemkeeper example-payments ledger\x00" + schema))
	return int64(binary.BigEndian.Uint64(sum[:]))
}

// watchClaim reads from the connection, on which the server has nothing to
// say, until it breaks or close is called.
func watchClaim(ctx context.Context, conn *pgx.Conn) postgresClaim {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := postgresClaim{lost: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var err error
		for err == nil { // a notice wakes it, too
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
