package ledger

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// ErrClaimed means that another instance has claimed the database.
var ErrClaimed = errors.New("claimed by another instance")

const (
	// claimPatience is how long a claim waits for an earlier one. The server may notice
	// the death of the earlier instance a moment late.
	claimPatience = 3 * time.Second
	// claimPause is between two tries to claim, and between two looks at the claim.
	claimPause = 100 * time.Millisecond
	// leadPause is between two tries to lead.
	leadPause = time.Second
	// claimLook bounds one question about a lock.
	claimLook = 3 * time.Second
)

// sessionLock is a taken lock on a connection of its own.
type sessionLock struct {
	conn *sql.Conn
	lost chan struct{} // closed when the connection broke
	free func()        // gives the lock back
}

// claimServer claims a ledger. With Shared it only checks that no other instance has
// an exclusive claim, and the result is nil.
func claimServer(ctx context.Context, db *sql.DB, locks *sqldialect.Locks, sh Sharing) (*sessionLock, error) {
	statement := locks.Take
	if sh == Shared {
		statement = locks.Look // a share of it ends with the connection, right after
	}
	ctx, cancel := context.WithTimeout(ctx, claimPatience)
	defer cancel()
	lock, err := acquire(ctx, db, locks, "ledger", statement, claimPause)
	if err == nil && sh == Shared {
		lock.free()
		return nil, nil
	}
	return lock, err
}

// acquire asks for a lock until it is free or ctx ends. The error wraps ErrClaimed if
// another session has the lock.
func acquire(ctx context.Context, db *sql.DB, locks *sqldialect.Locks, purpose, statement string, pause time.Duration) (*sessionLock, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	var place string
	if err := conn.QueryRowContext(ctx, locks.Place).Scan(&place); err != nil {
		discard(conn)
		return nil, fmt.Errorf("ledger: %w", err)
	}
	name := locks.Name("idemkeeper example-payments " + purpose + "\x00" + place)
	for taken := false; ; {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimLook)
		err := conn.QueryRowContext(asking, statement, name).Scan(&taken)
		cancel()
		switch {
		case err != nil:
			discard(conn)
			return nil, fmt.Errorf("ledger: %w", err)
		case taken:
			return watch(conn), nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			discard(conn)
			return nil, fmt.Errorf("ledger: %w: its lock %q is held: %w", ErrClaimed, purpose, ctx.Err())
		}
	}
}

// watch checks the connection of a lock until the lock is given back.
func watch(conn *sql.Conn) *sessionLock {
	ctx, cancel := context.WithCancel(context.Background())
	l := &sessionLock{conn: conn, lost: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			look, end := context.WithTimeout(ctx, claimLook)
			err := conn.PingContext(look)
			end()
			if err != nil && ctx.Err() == nil {
				close(l.lost)
				return
			}
			select {
			case <-time.After(claimPause):
			case <-ctx.Done():
			}
		}
	}()
	l.free = func() {
		cancel()
		<-done
		discard(conn)
	}
	return l
}

// discard closes a connection, which frees its locks.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	_ = conn.Close()
}

// Lead is a sweeper.Lead. It waits for a lock in the database, and runs term while this
// instance has the lock. A database of SQLite has one instance, which always leads.
func (l *Ledger) Lead(ctx context.Context, term func(context.Context) error) error {
	locks := l.dialect.Locks
	if locks == nil {
		return term(ctx)
	}
	lock, err := acquire(ctx, l.locks.Write, locks, "sweeper", locks.Take, leadPause)
	if err != nil {
		return err
	}
	defer lock.free()
	_, _ = lock.conn.ExecContext(ctx, locks.Expire) // without it the next leader waits longer
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	go func() {
		defer close(ended)
		select {
		case <-lock.lost:
			cancel()
		case <-ctx.Done():
		}
	}()
	return term(ctx)
}
