package idem_test

import (
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// An option for the other mode would do nothing, so the engine is not made. The other forms panic.
func TestOptionsOfTheOtherModeAreRefused(t *testing.T) {
	lock, store := memorylock.New(), memorystore.New()
	_, withLock := idem.New(lock, store, idem.WithConflictRetries(1))
	_, joined := idem.NewJoined(newBook(), idem.WithSingleInstance())
	for want, err := range map[string]error{"WithConflictRetries is for NewJoined": withLock, "WithSingleInstance is for New": joined} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
	if idem.MustNew(lock, store, idem.WithConflictRetries(0)) == nil || idem.MustNewJoined(newBook()) == nil {
		t.Error("MustNew() or MustNewJoined() = <nil>, want an engine")
	}
	for name, wire := range map[string]func(){"MustNew": func() { idem.MustNew(nil, store) }, "MustNewJoined": func() { idem.MustNewJoined(nil) }} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s() with wrong wiring did not panic", name)
				}
			}()
			wire()
		}()
	}
}
