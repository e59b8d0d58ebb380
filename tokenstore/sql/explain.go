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

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// explain names the likely reason of the first error of a database.
func (n names) explain(ctx context.Context, db *sql.DB, err error) error {
	if err == nil {
		return nil
	}
	if !sqldialect.Spoken(err) {
		return err // no database has said a word
	}
	if sqldialect.SQLiteCode(err)&0xff == sqldialect.SQLiteCannotOpen {
		return fmt.Errorf("%w: %s", err, whyNotOpened(sqliteFile(db)))
	}
	if wrong := n.dialect.Mismatch(ctx, db); wrong != nil {
		return fmt.Errorf("tokenstore/sql: %w", wrong)
	}
	return err
}

// sqliteFile returns the file of a pool, or "" if package database/sql does not tell its data source name.
func sqliteFile(db *sql.DB) string {
	v := reflect.ValueOf(db).Elem().FieldByName("connector")
	for v.Kind() == reflect.Interface && !v.IsNil() {
		if v = v.Elem(); v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		if v.Kind() == reflect.Struct && v.FieldByName("Connector").IsValid() { // of Strict
			v = v.FieldByName("Connector")
		}
	}
	if v.Kind() != reflect.Struct {
		return ""
	}
	dsn := v.FieldByName("dsn")
	if dsn.Kind() != reflect.String { // also without such a field
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
	f, err = os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // as above
	if err == nil {                                                    // the connection may not make it
		_ = f.Close()
		_ = os.Remove(file)
		return file + " does not exist"
	}
	return fmt.Sprintf("it does not exist, and cannot be made: %v: let the user of this process write to its folder", err)
}
