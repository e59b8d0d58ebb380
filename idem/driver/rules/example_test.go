package rules_test

import (
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
)

// A store reads the entry of a key, asks what a Begin does with it, and writes the answer, all in one
// step. Here the entry is a variable.
func ExampleBegin() {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	var entry *rules.Entry
	for token := range uint64(2) {
		write, res, err := rules.Begin(entry.At(now), driver.BeginRequest{Fence: driver.Fence{Domain: "d", Token: token + 1}, Nonce: driver.Nonce{byte(token)}}, now)
		if err != nil {
			fmt.Println(err)
			return
		}
		if write != nil {
			entry = write
		}
		fmt.Println(res.Begun, res.Record.State, res.Record.Attempt.Number)
	}
	// Output:
	// true pending 1
	// false pending 1
}
