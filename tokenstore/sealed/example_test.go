package sealed_test

import (
	"fmt"

	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
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
