package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite"

	"github.com/idemkeeper/idemkeeper/idem"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// The record and the payment commit together. The first request fails after its payment was
// written, and both are rolled back. The second one pays, and the third one is a replay. On
// PostgreSQL, MySQL and MariaDB, sqlstore.Join makes such an engine in one line.
func Example_joined() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	forWriting, forReading := sqlstore.SQLiteDSN(filepath.Join(dir, "payments.db"))
	db, _ := sql.Open("sqlite", forWriting) // connects at its first use
	defer db.Close()
	db.SetMaxOpenConns(1)
	read, _ := sql.Open("sqlite", forReading)
	defer read.Close()
	if err := sqlstore.Migrate(ctx, db, dialect.SQLite); err != nil {
		panic(err)
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE payments (cents INTEGER)"); err != nil {
		panic(err)
	}

	store, err := sqlstore.New(ctx, db, dialect.SQLite, sqlstore.WithReadPool(read), sqlstore.WithSoleProcess())
	if err != nil {
		panic(err)
	}
	joined, err := store.Joined()
	if err != nil {
		panic(err)
	}
	engine, err := idem.NewJoined(joined, idem.WithCloser(store))
	if err != nil {
		panic(err)
	}
	defer engine.Close(ctx)

	policy := idem.Policy{Name: "pay"}
	for request := range 3 {
		res, err := engine.Do(ctx, idem.Operation{
			Scope: "merchant_1", Key: "order-1001", Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "12.50"),
		}, func(ctx context.Context) (idem.Response, error) {
			tx, err := sqlstore.Tx(ctx)
			if err != nil {
				return idem.Response{}, err
			}
			if _, err := tx.ExecContext(ctx, "INSERT INTO payments (cents) VALUES (1250)"); err != nil {
				return idem.Response{}, err
			}
			if request == 0 {
				return idem.Response{}, errors.New("the mail with the receipt failed")
			}
			return idem.Response{Body: []byte("pay_1")}, nil
		})
		var payments int
		if err := read.QueryRowContext(ctx, "SELECT count(*) FROM payments").Scan(&payments); err != nil {
			panic(err)
		}
		fmt.Printf("%q, replayed %v, failed %v, payments %d\n", res.Response.Body, res.Replayed, err != nil, payments)
	}
	// Output:
	// "", replayed false, failed true, payments 0
	// "pay_1", replayed false, failed false, payments 1
	// "pay_1", replayed true, failed false, payments 1
}
