package memorystore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A token is issued once and consumed by its first use.
func Example() {
	ctx, store := context.Background(), memorystore.New()
	id := idem.NewKeyID("tenant-1", "a-token")
	issued, _ := store.Issue(ctx, id, 15*time.Minute)
	fmt.Println(issued.State)

	for token := range uint64(2) {
		res, _ := store.Begin(ctx, id, driver.BeginRequest{
			Kind: driver.IssuedToken, Nonce: driver.NewNonce(),
			Fence: driver.Fence{Domain: "here", Token: token + 1},
		})
		fmt.Println(res.Begun, res.Record.State)
	}
	// Output:
	// issued
	// true pending
	// false pending
}
