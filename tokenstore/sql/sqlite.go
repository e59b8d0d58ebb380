package sqlstore

import (
	"context"
	"fmt"
	"net/url"

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

var sqlite = &kind{
	Dialect:        sqldialect.Of(dialect.SQLite),
	check:          sqliteCheck,
	folder:         "sqlite",
	beginMigration: []string{"BEGIN IMMEDIATE"},
	endMigration:   []string{"COMMIT"},
	undoMigration:  []string{"ROLLBACK"},
	commentsStay:   true,
	printedClock:   "coalesce({clock}, CAST(strftime('%s', 'now') AS INTEGER) * 1000000)",
	join:           newSQLiteGuard,
}

// SQLiteDSN returns two data source names of a file for modernc.org/sqlite, one for the pool
// that writes and one for the pool that reads. They set:
//
//   - write-ahead logging, so that readers and the writer do not wait for each other
//   - synchronous=FULL, so that a commit is on the disk before it is acknowledged
//   - foreign keys, which keep a pending record from being committed
//   - BEGIN IMMEDIATE, so that a transaction waits for the writer before it, at its begin
//   - a wait of at most 5 s
//
// SQLite has one writer at a time, so give the writing pool one connection
// (SetMaxOpenConns). A pool of several has them wait for each other by polling.
func SQLiteDSN(file string) (write, read string) {
	name := (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: file}).EscapedPath()}).String()
	pragmas := []string{"busy_timeout(5000)", "foreign_keys(1)", "synchronous(FULL)"}
	w := url.Values{"_txlock": {"immediate"}, "_pragma": append(pragmas, "journal_mode(WAL)")}
	r := url.Values{"_pragma": append(pragmas[:1:1], "query_only(1)")}
	return name + "?" + w.Encode(), name + "?" + r.Encode()
}

// sqliteCheck refuses settings that would lose a record in a crash, or let a pending record
// be committed.
func sqliteCheck(ctx context.Context, s *Store) error {
	s.returning, s.longestResponse = true, longestValue
	if s.config.readOnly {
		return nil
	}
	var journal string
	var synchronous, keys int
	for pragma, to := range map[string]any{"journal_mode": &journal, "synchronous": &synchronous, "foreign_keys": &keys} {
		if err := s.db.QueryRowContext(ctx, "PRAGMA "+pragma).Scan(to); err != nil {
			return err
		}
	}
	const full = 2
	switch {
	case journal != "wal" && journal != "memory":
		return fmt.Errorf("%w: journal_mode is %s, want wal: see SQLiteDSN", errSetting, journal)
	case synchronous < full && journal != "memory":
		return fmt.Errorf("%w: synchronous is %d, want FULL: see SQLiteDSN", errSetting, synchronous)
	case keys != 1:
		return fmt.Errorf("%w: foreign_keys is off: see SQLiteDSN", errSetting)
	}
	return nil
}
