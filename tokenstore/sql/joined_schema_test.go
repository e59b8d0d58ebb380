package sqlstore

import (
	"database/sql"
	"net/url"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Services in different schemas of one database know nothing of each other's keys, although
// advisory locks are the database's. The schema is that of the connection.
func TestJoinedKeysOfAnotherSchemaAreFree(t *testing.T) {
	t.Parallel()
	p := freshPostgres(t)
	stores := map[string]*Joined{}
	for _, schema := range []string{"one", "two"} {
		mustExec(t, p.write, "CREATE SCHEMA "+schema)
		u, err := url.Parse(p.dsn)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		q.Set("search_path", schema)
		u.RawQuery = q.Encode()
		db, err := sql.Open("pgx", u.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		if err := Migrate(t.Context(), db, dialect.PostgreSQL); err != nil {
			t.Fatal(err)
		}
		store, err := New(t.Context(), db, dialect.PostgreSQL, WithExpiry(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		if stores[schema], err = store.Joined(); err != nil {
			t.Fatal(err)
		}
	}
	id := idem.NewKeyID("merchant", "key")
	req := driver.JoinedRequest{Route: "pay", Nonce: driver.NewNonce()}
	first, err := stores["one"].BeginJoined(t.Context(), id, req)
	if err != nil || first.Tx == nil {
		t.Fatalf("BeginJoined() = %+v, %v, want a transaction", first, err)
	}
	defer first.Tx.Rollback(t.Context())
	for schema, want := range map[string]bool{"one": true, "two": false} {
		if held, err := stores[schema].Held(t.Context(), id); held != want || err != nil {
			t.Errorf("Held() in schema %s = %v, %v, want %v", schema, held, err, want)
		}
	}
	second, err := stores["two"].BeginJoined(t.Context(), id, req)
	if err != nil || second.Tx == nil {
		t.Fatalf("BeginJoined() in the other schema = %+v, %v, want a transaction", second, err)
	}
	if err := second.Tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}
