package ledger

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

var sqliteDialect = dialect{
	serial:    "INTEGER PRIMARY KEY AUTOINCREMENT",
	retryable: sqliteBusy,
}

// sqliteBusy is reported before the transaction has written, because transactions
// take the write lock when they begin.
func sqliteBusy(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code()&0xff == sqlite3.SQLITE_BUSY || e.Code()&0xff == sqlite3.SQLITE_LOCKED)
}

// openEmbedded opens a database in this process's memory. It is lost with its last
// connection, and package sql may close any of its own. So one more connection
// stays open and unused.
func openEmbedded(ctx context.Context) (*Ledger, error) {
	dsn := sqliteDSN("file:/payments-"+rand.Text(), url.Values{"vfs": {"memdb"}})
	keeper, err := openSQLite(ctx, dsn, 1)
	if err != nil {
		return nil, err
	}
	conn, err := keeper.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, keeper.Close())
	}
	db, err := openSQLite(ctx, dsn, 1)
	if err != nil {
		return nil, errors.Join(err, conn.Close(), keeper.Close())
	}
	return &Ledger{dialect: sqliteDialect, write: db, read: db,
		closers: []func() error{db.Close, conn.Close, keeper.Close}}, nil
}

// openFile opens a file with one connection for writing, because SQLite has one
// writer at a time, and several for reading beside it (WAL). A payment is on the
// disk before it is answered (synchronous=FULL).
func openFile(ctx context.Context, file string, s Sharing) (*Ledger, error) {
	path, err := canonical(file)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	unlock, err := claimFile(path, s)
	if err != nil {
		return nil, err
	}
	name := (&url.URL{Scheme: "file", Path: path}).String()
	write, err := openSQLite(ctx, sqliteDSN(name, url.Values{"_pragma": {"journal_mode(WAL)", "synchronous(FULL)"}}), 1)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ledger: open %s: %w", file, err), unlock())
	}
	read, err := openSQLite(ctx, sqliteDSN(name, url.Values{"_pragma": {"query_only(1)"}}), 8)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ledger: open %s: %w", file, err), write.Close(), unlock())
	}
	return &Ledger{dialect: sqliteDialect, write: write, read: read,
		closers: []func() error{read.Close, write.Close, unlock}}, nil
}

// canonical resolves links, so that every name of a file gives the same claim.
func canonical(file string) (string, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target, nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path)) // the file does not exist yet
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}

// sqliteDSN adds settings to a file's name, those of every connection first.
func sqliteDSN(name string, q url.Values) string {
	q.Set("_txlock", "immediate")
	q["_pragma"] = append([]string{"busy_timeout(5000)"}, q["_pragma"]...)
	return name + "?" + q.Encode()
}

func openSQLite(ctx context.Context, dsn string, conns int) (*sql.DB, error) {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}
