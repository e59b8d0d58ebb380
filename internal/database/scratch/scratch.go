// Package scratch makes databases for one test.
package scratch

import (
	"net/url"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// Database makes a database on a server, with the tables of the token store, and returns its URL. It drops
// the database after the test.
func Database(t testing.TB, server string) (string, *database.DB) {
	t.Helper()
	name := Empty(t, server)
	db := Open(t, name)
	if err := sqlstore.Migrate(t.Context(), db.Write, db.Dialect); err != nil {
		t.Fatal(err)
	}
	return name, db
}

// Empty is Database without the tables.
func Empty(t testing.TB, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	name := "tests_" + driver.NewNonce().String()
	if u.Scheme == "mysql" {
		u.Path = "/mysql"
	}
	admin := Open(t, u.String())
	drop := "DROP DATABASE " + name
	if u.Scheme != "mysql" {
		drop += " WITH (FORCE)"
	}
	t.Cleanup(func() {
		if _, err := admin.Write.Exec(drop); err != nil {
			t.Error(err)
		}
	})
	if _, err := admin.Write.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// Open opens a database by its URL until the test ends. The file of SQLite is made if there is none.
func Open(t testing.TB, name string) *database.DB {
	t.Helper()
	db, err := database.Open(name, database.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}
