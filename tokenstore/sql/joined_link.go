package sqlstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"math/rand/v2"
	"reflect"

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// TxStatus is the state of a transaction as the server reported it last, in the protocol itself. So a
// look at it takes no round trip, also on a connection that has been closed since.
type TxStatus byte

// The values are those of PostgreSQL's message ReadyForQuery.
const (
	TxUnknown TxStatus = 0   // the driver does not tell
	TxIdle    TxStatus = 'I' // no transaction is open
	TxOpen    TxStatus = 'T'
	TxFailed  TxStatus = 'E' // a statement has failed, so the transaction can only be rolled back
)

// link is what pgx knows of a connection beyond database/sql. PID and CancelRequest may be called
// while a goroutine of the handler uses the connection, and the others may not.
type link interface {
	TxStatus() byte
	IsBusy() bool // rows are open
	PID() uint32  // of the session, as the server gave it to the client
	CancelRequest(ctx context.Context) error
}

// linkOf returns the link of a connection of pgx's stdlib, or nil for another driver. It calls the
// methods Conn and PgConn by their names, because an import of pgx would link it into services on
// other databases.
func linkOf(conn any) link {
	conn = innermost(conn)
	for _, name := range []string{"Conn", "PgConn"} {
		v := reflect.ValueOf(conn)
		if !v.IsValid() {
			return nil
		}
		method := v.MethodByName(name)
		if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
			return nil
		}
		conn = method.Call(nil)[0].Interface()
	}
	l, _ := conn.(link)
	return l
}

// innermost returns the connection of the driver. A wrapper shows what it wraps by a method Raw.
func innermost(conn any) any {
	for {
		wrapper, ok := conn.(interface{ Raw() sqldriver.Conn })
		if !ok {
			return conn
		}
		conn = wrapper.Raw()
	}
}

// wrapperOf returns the wrapper of a type around a connection, or the zero value without one.
func wrapperOf[T any](conn any) (found T) {
	for {
		if w, ok := conn.(T); ok {
			return w
		}
		wrapper, ok := conn.(interface{ Raw() sqldriver.Conn })
		if !ok {
			return found
		}
		conn = wrapper.Raw()
	}
}

// isStrict reports whether the connections of a pool are those of [Strict].
func isStrict(ctx context.Context, db *sql.DB) (strict bool) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return false
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool
	_ = conn.Raw(func(driverConn any) error {
		strict = wrapperOf[*strictConn](driverConn) != nil
		return nil
	})
	return strict
}

// locksAreStubs reports whether two transactions get the same advisory lock, as on servers of other makers that
// have these functions for the sake of their clients. It is false if that cannot be found out.
func locksAreStubs(ctx context.Context, db *sql.DB) (bool, error) {
	const lock = "SELECT pg_catalog.pg_try_advisory_xact_lock($1)"
	key := rand.Int64() //nolint:gosec // a number that nobody else uses, and no secret
	tx, err := db.BeginTx(ctx, nil)
	if sqldialect.SQLState(err) == "08P01" { // of PgBouncer with pool_mode = statement
		return false, fmt.Errorf("%w: joined mode needs transactions, and the pooler in front of the server gives none: set its pool_mode to transaction (docs/sql.md#poolers): %w", errSetting, err)
	}
	if err != nil {
		return false, nil // each request finds out
	}
	defer tx.Rollback() //nolint:errcheck // it has only locked
	var first, second bool
	if tx.QueryRowContext(ctx, lock, key).Scan(&first) != nil || db.QueryRowContext(ctx, lock, key).Scan(&second) != nil {
		return false, nil
	}
	return first && second, nil
}

// BehindPooler reports whether the sessions of a PostgreSQL pool are not those that the server gave to
// the client, as behind PgBouncer. It is false if the driver is not pgx, which does not tell.
func BehindPooler(ctx context.Context, db *sql.DB) (bool, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return false, fmt.Errorf("tokenstore/sql: %w", err)
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool
	var own link
	_ = conn.Raw(func(driverConn any) error {
		own = linkOf(driverConn)
		return nil
	})
	var pid int64
	if err := conn.QueryRowContext(ctx, "SELECT pg_catalog.pg_backend_pid()").Scan(&pid); err != nil {
		return false, fmt.Errorf("tokenstore/sql: %w", err)
	}
	return own != nil && int64(own.PID()) != pid, nil
}
