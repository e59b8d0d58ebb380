package sealed_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func Example() {
	// From the environment; each made with: openssl rand -base64 32
	ring, err := sealed.ParseRing("2026-02=c2VjcmV0IG51bWJlciAyLCBvZiAzMiBieXRlcyEhISE=,2026-01=c2VjcmV0IG51bWJlciAxLCBvZiAzMiBieXRlcyEhISE=")
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := sealed.New(memorystore.New(), ring) // or over any other token store
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = store // idem.New(locker, store)
	fmt.Println("sealing responses:", ring)
	// Output: sealing responses: ring[2026-02 2026-01]
}

// A joined engine seals its responses too. The handler still gets its transaction from
// sqlstore.Tx.
func ExampleNewJoined() {
	newEngine := func(ctx context.Context, db *sql.DB, ring *sealed.Ring) (*idem.Engine, error) {
		store, err := sqlstore.New(ctx, db, dialect.PostgreSQL)
		if err != nil {
			return nil, err
		}
		joined, err := store.Joined()
		if err != nil {
			return nil, err
		}
		sealing, err := sealed.NewJoined(joined, ring)
		if err != nil {
			return nil, err
		}
		return idem.NewJoined(sealing, idem.WithCloser(store))
	}
	_ = newEngine // it needs a server
	// Output:
}
