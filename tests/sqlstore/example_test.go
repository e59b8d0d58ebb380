package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// A service on SQLite opens the file twice, migrates it, and makes a store.
func Example_store() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	forWriting, forReading := sqlstore.SQLiteDSN(filepath.Join(dir, "payments.db"))
	write, _ := sql.Open("sqlite", forWriting) // connects at its first use
	defer write.Close()
	write.SetMaxOpenConns(1)
	read, _ := sql.Open("sqlite", forReading)
	defer read.Close()

	if err := sqlstore.Migrate(ctx, write, dialect.SQLite); err != nil {
		fmt.Println(err)
		return
	}
	store, err := sqlstore.New(ctx, write, dialect.SQLite, sqlstore.WithReadPool(read), sqlstore.WithSoleProcess())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	id := idem.NewKeyID("tenant-1", "order-4711")
	for token := range uint64(2) {
		res, err := store.Begin(ctx, id, driver.BeginRequest{
			Kind: driver.ClientKey, Nonce: driver.NewNonce(), Fence: driver.Fence{Domain: "here", Token: token + 1},
		})
		fmt.Println(res.Begun, res.Record.State, err)
	}
	// Output:
	// true pending <nil>
	// false pending <nil>
}
