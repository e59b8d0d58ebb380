package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/idemkeeper/idemkeeper/internal/sqlserver"
)

// ErrWrongDialect says that the dialect is not that of the database.
var ErrWrongDialect = errors.New("tokenstore/sql: wrong dialect")

// explain names the likely reason of the first error of a database.
func (n names) explain(ctx context.Context, db *sql.DB, err error) error {
	if err == nil {
		return nil
	}
	if sqlState(err) == "" && mysqlNumber(err) == 0 && sqliteCode(err) == 0 {
		return err // no database has said a word
	}
	const cannotOpen = 14 // SQLITE_CANTOPEN
	if sqliteCode(err)&0xff == cannotOpen {
		return fmt.Errorf("%w: %s", err, whyNotOpened(sqliteFile(db)))
	}
	if server, use := sqlserver.Of(ctx, db); server != "" && use != n.dialect.name {
		return fmt.Errorf("%w: it is %s, and the database is %s: use sqlstore.%s()", ErrWrongDialect, n.dialect.name, server, use)
	}
	return err
}

// sqliteFile returns the file of a pool, or "" if package database/sql does not tell its data source name.
func sqliteFile(db *sql.DB) string {
	connector := reflect.ValueOf(db).Elem().FieldByName("connector")
	if connector.Kind() != reflect.Interface || connector.IsNil() {
		return ""
	}
	v := connector.Elem()
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return ""
	}
	dsn := v.FieldByName("dsn")
	if !dsn.IsValid() || dsn.Kind() != reflect.String {
		return ""
	}
	name, isURL := strings.CutPrefix(dsn.String(), "file:")
	name, _, _ = strings.Cut(name, "?")
	if path, err := url.PathUnescape(name); err == nil && isURL {
		return path
	}
	return name
}

// whyNotOpened says why SQLite could not open a file, which it does not tell itself.
func whyNotOpened(file string) string {
	if file == "" {
		return "look at the path, and at the rights on the file and its folder"
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0) //nolint:gosec // the file of the caller's own database
	if err == nil {
		_ = f.Close() // nothing was written
		return file + ": the folder has to be writable, too"
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err.Error()
	}
	if _, err := os.Stat(filepath.Dir(file)); err != nil {
		return fmt.Sprintf("%s: its folder: %v", file, err)
	}
	return file + " does not exist, and cannot be made in its folder"
}
