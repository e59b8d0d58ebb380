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

// sqliteBusy is reported before anything was written: transactions take the
// write lock when they begin.
func sqliteBusy(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code()&0xff == sqlite3.SQLITE_BUSY || e.Code()&0xff == sqlite3.SQLITE_LOCKED)
}

// openEmbedded opens a database in this process's memory. It is lost with its
// last connection, and package sql closes connections as it likes; so one is
// kept that nobody uses.
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

// openFile opens a file: one connection that writes, since SQLite has one
// writer anyway, and some that read beside it (WAL). A payment that was
// answered is on the disk (synchronous=FULL).
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

// canonical gives the one name under which a file is claimed, whatever links
// lead to it.
func canonical(file string) (string, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target, nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path)) // the file is not there yet
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}

// sqliteDSN adds to a file's name the given settings and those of every
// connection.
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
