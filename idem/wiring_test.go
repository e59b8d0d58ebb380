package idem_test

import (
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// An option for the other mode would do nothing, so the engine is not made. The other forms panic.
func TestOptionsOfTheOtherModeAreRefused(t *testing.T) {
	lock, store := memorylock.New(), memorystore.New()
	_, withLock := idem.New(lock, store, idem.WithConflictRetries(1))
	_, joined := idem.NewJoined(newBook(), idem.WithSingleInstance())
	_, locks := idem.NewJoined(newBook(), idem.WithLockSession(new(session)))
	for want, err := range map[string]error{"WithLockSession is for New": locks, "WithConflictRetries is for NewJoined": withLock, "WithSingleInstance is for New": joined} {
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

// forTools is a store without writes.
type forTools struct{ driver.Store }

func (forTools) ReadOnly() bool { return true }

func TestStoreForToolsIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := idem.New(memorylock.New(), forTools{memorystore.New()}); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("New() = %v, want an error that says read-only", err)
	}
}

// A sweeper leads by the locker of its engine. In joined mode there is none.
func TestLockerOfAnEngine(t *testing.T) {
	t.Parallel()
	locker := memorylock.New()
	if got := idem.MustNew(locker, memorystore.New()).Locker(); got != driver.Locker(locker) {
		t.Errorf("Locker() = %v, want that of New", got)
	}
	if got := idem.MustNewJoined(newBook()).Locker(); got != nil {
		t.Errorf("Locker() = %v in joined mode, want nil", got)
	}
}
