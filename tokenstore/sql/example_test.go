package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite"

	"github.com/idemkeeper/idemkeeper/idem"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// A service on SQLite opens the file twice, migrates it, and makes a store.
func Example() {
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

	if err := sqlstore.Migrate(ctx, write, sqlstore.SQLite()); err != nil {
		fmt.Println(err)
		return
	}
	store, err := sqlstore.New(ctx, write, sqlstore.SQLite(), sqlstore.WithReadPool(read), sqlstore.WithSoleProcess())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	id := idem.NewKeyID("tenant-1", "order-4711")
	for token := range uint64(2) {
		res, err := store.Begin(ctx, id, idem.BeginRequest{
			Kind: idem.ClientKey, Nonce: idem.NewNonce(), Fence: idem.Fence{Domain: "here", Token: token + 1},
		})
		fmt.Println(res.Begun, res.Record.State, err)
	}
	// Output:
	// true pending <nil>
	// false pending <nil>
}
