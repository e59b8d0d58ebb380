package idem_test

import (
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestNewRefusesALockThatOthersCannotSee(t *testing.T) {
	_, err := idem.New(memorylock.New(), sharedStore{})
	if err == nil {
		t.Error("New(process lock, shared store) = nil, want an error")
	}
}

func TestNewRefusesSettingsThatCannotWork(t *testing.T) {
	for name, opt := range map[string]idem.Option{
		"store time-out":  idem.WithStoreTimeout(0),
		"lock time-out":   idem.WithLockTimeout(-1),
		"settle time-out": idem.WithSettleTimeout(0),
		"long running":    idem.WithLongRunning(-1),
		"retries":         idem.WithConflictRetries(-1),
		"limit":           idem.WithMaxOpenExecutionsPerScope(-1),
	} {
		if _, err := idem.New(memorylock.New(), memorystore.New(), opt); err == nil {
			t.Errorf("%s: New() = nil, want an error", name)
		}
		if _, err := idem.NewJoined(newBook(), opt); err == nil {
			t.Errorf("%s: NewJoined() = nil, want an error", name)
		}
	}
	if _, err := idem.NewJoined(nil); err == nil {
		t.Error("NewJoined(nil) = nil, want an error")
	}
}

// A lock that other instances share over records that they cannot see would let each of them run a
// key, so it takes a promise that there is one instance.
func TestSharedLockOverPrivateRecordsNeedsASingleInstance(t *testing.T) {
	if _, err := idem.New(sharedLocker{memorylock.New()}, memorystore.New()); err == nil || !strings.Contains(err.Error(), "WithSingleInstance") {
		t.Errorf("New() = %v, want an error that names WithSingleInstance", err)
	}
	if _, err := idem.New(sharedLocker{memorylock.New()}, memorystore.New(), idem.WithSingleInstance()); err != nil {
		t.Errorf("New(WithSingleInstance) = %v", err)
	}
	if _, err := idem.New(memorylock.New(), sharedStore{}, idem.WithSingleInstance()); err == nil {
		t.Error("New() = nil for a private lock over shared records, want an error")
	}
}

type sharedLocker struct{ driver.Locker }

func (sharedLocker) Visibility() driver.Visibility { return driver.VisibilityShared }

type sharedStore struct{ driver.Store }

func (sharedStore) Visibility() driver.Visibility { return driver.VisibilityShared }
