package record

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	lockmemory "github.com/idemkeeper/idemkeeper/lock/memory"
	storememory "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// Between the look and the lock the attempt was settled, and another one began. The
// command leaves that one alone, with a lock and without.
func TestResolveOfAnAttemptThatWasReplaced(t *testing.T) {
	store, locker := storememory.New(), lockmemory.New()
	id, v := idem.NewKeyID("m", "k"), &verdict{decision: driver.Decision{By: "alice"}, resultTTL: time.Hour, keyTTL: time.Hour}
	begin := func() driver.Record {
		t.Helper()
		lease, err := locker.TryAcquire(t.Context(), driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()})
		if err != nil {
			t.Fatal(err)
		}
		fp, err := idem.NewFingerprint(idem.FingerprintVersion, "test")
		if err != nil {
			t.Fatal(err)
		}
		got, err := store.Begin(t.Context(), id, driver.BeginRequest{Route: "POST /pay", Fence: lease.Fence(), Nonce: driver.NewNonce(), Fingerprint: fp, KeyTTL: time.Hour})
		if err != nil || !got.Begun {
			t.Fatalf("Begin = %+v, %v", got, err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		return got.Record
	}
	looked := begin()
	s, err := store.Settle(t.Context(), id, driver.Settlement{Attempt: looked.Attempt, ID: looked.Attempt.Nonce, State: driver.StateReleased, KeyTTL: time.Hour})
	if err != nil || !s.Settled {
		t.Fatalf("Settle = %+v, %v", s, err)
	}
	begin()
	_, under := decideUnderLock(t.Context(), store, locker, id, looked.Attempt, nil, v)
	_, without := decideWithoutLock(t.Context(), store, id, &looked, nil, v)
	for _, err := range []error{under, without} {
		if !errors.Is(err, cli.ErrNothing) || !strings.Contains(err.Error(), "attempt 2 is") {
			t.Errorf("decision = %v, want that another attempt is open", err)
		}
	}
	if rec, err := store.Get(t.Context(), id); err != nil || rec.State != driver.StatePending || rec.Attempt.Number != 2 {
		t.Errorf("Get = %+v, %v, want the second attempt pending", rec, err)
	}
}
