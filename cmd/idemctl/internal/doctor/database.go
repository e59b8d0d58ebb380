package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// checkDatabase checks a database and the tables in it. It returns the store and its clock, and
// nil if the store cannot be used. The caller closes the store.
func checkDatabase(ctx context.Context, r *report, flags *servers.Database, db *database.DB) (*sqlstore.Store, []clockReading) {
	if err := db.Read.PingContext(ctx); err != nil {
		r.failf("database", "%s: %v", db.Name, err)
		return nil, nil
	}
	r.okf("database", "%s answers", db.Name)
	checkDatabaseVersion(ctx, r, db)
	if sqldialect.Of(db.Dialect).Poolers {
		checkPooler(ctx, r, db)
	}
	warned := warnings{report: r}
	store, err := sqlstore.New(ctx, db.Write, db.Dialect, flags.StoreOptions(db, slog.New(&warned))...)
	switch {
	case errors.Is(err, sqlstore.ErrNotMigrated):
		r.failf("database-schema", `%v; see "store migrate"`, err)
		return nil, nil
	case errors.Is(err, sqlstore.ErrNewerSchema):
		r.failf("database-schema", "%v: use a newer idemctl", err)
		return nil, nil
	case errors.Is(err, sqlstore.ErrRights):
		r.failf("database-rights", "%v", err)
		return nil, nil
	case err != nil:
		r.failf("database-settings", "%v", err)
		return nil, nil
	}
	r.okf("database-schema", "the tables have version %d", sqlstore.SchemaVersion)
	if !warned.any {
		r.okf("database-settings", "acknowledged records survive a crash")
	}
	checkRights(ctx, r, db, store)
	if err := store.Ping(ctx); err != nil {
		r.failf("database-write", "%v", err)
	} else {
		r.okf("database-write", "the database accepts writes")
	}
	sent := time.Now()
	now, err := store.Clock(ctx)
	if err != nil {
		r.failf("database", "%v", err)
		_ = store.Close()
		return nil, nil
	}
	return store, []clockReading{readClock(string(db.Dialect), now, sent)}
}

// checkRights looks whether a service could run as this user. An operator's user has other rights.
func checkRights(ctx context.Context, r *report, db *database.DB, store *sqlstore.Store) {
	const check = "database-rights"
	switch err := store.CheckRights(ctx, sqlstore.RoleService); {
	case sqldialect.Of(db.Dialect).File: // it has no users
	case errors.Is(err, sqlstore.ErrRights):
		r.warnf(check, "no service can run as this user: %v", err)
	case err != nil:
		r.failf(check, "%v", err)
	default:
		r.okf(check, "a service can run as this user")
	}
}

// checkPooler looks for a pooler between this client and PostgreSQL. The service may have another way.
func checkPooler(ctx context.Context, r *report, db *database.DB) {
	const check = "database-pooler"
	switch pooled, err := sqlstore.BehindPooler(ctx, db.Read); {
	case err != nil:
		r.failf(check, "%v", err)
	case pooled:
		r.warnf(check, "a pooler stands in between: see docs/sql.md on poolers")
	default:
		r.okf(check, "no pooler stands in between")
	}
}

var versionNumbers = regexp.MustCompile(`^(\d+)(?:\.(\d+))?`)

func checkDatabaseVersion(ctx context.Context, r *report, db *database.DB) {
	const check = "database-version"
	d := sqldialect.Of(db.Dialect)
	var version string
	if err := db.Read.QueryRowContext(ctx, d.VersionQuestion).Scan(&version); err != nil {
		r.failf(check, "%v", err)
		return
	}
	name, oldestMajor, oldestMinor := d.Oldest(version)
	m := versionNumbers.FindStringSubmatch(version)
	if m == nil {
		r.warnf(check, "%s %s: unknown version", name, version)
		return
	}
	major, _ := strconv.Atoi(m[1]) // digits
	minor, _ := strconv.Atoi(m[2])
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		r.failf(check, "%s %s, want %d.%d or later", name, version, oldestMajor, oldestMinor)
		return
	}
	r.okf(check, "%s %s", name, version)
}

// warnings makes a finding of each warning that a store logs.
type warnings struct {
	report *report
	any    bool
}

// Enabled implements [slog.Handler].
func (w *warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle implements [slog.Handler].
func (w *warnings) Handle(_ context.Context, rec slog.Record) error {
	w.any = true
	text := strings.TrimPrefix(rec.Message, "tokenstore/sql: ")
	rec.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprintf(" (%v)", a)
		return true
	})
	w.report.warnf("database-settings", "%s", text)
	return nil
}

// WithAttrs implements [slog.Handler].
func (w *warnings) WithAttrs([]slog.Attr) slog.Handler { return w }

// WithGroup implements [slog.Handler].
func (w *warnings) WithGroup(string) slog.Handler { return w }
