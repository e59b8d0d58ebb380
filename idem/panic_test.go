package idem_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// hook is a client's hook that panics.
func hook() error { panic("hook") }

// TestPanicBelowTheEngineLeavesNoLock: whatever panics below the engine is a call without an answer. The
// client is refused, the process goes on, and the key works again.
func TestPanicBelowTheEngineLeavesNoLock(t *testing.T) {
	for _, method := range []string{"Get", "Begin"} {
		t.Run("Store."+method, func(t *testing.T) {
			b := setup(t, parts{})
			b.faults.Before(method, 1, hook)
			_, err := b.do("k", "a")
			b.wantRefused(err, idem.CodeUnavailable)
			if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "hook") || !strings.Contains(err.Error(), "panic_test.go") {
				t.Errorf("Do() = %v, want the panic and where it came from", err)
			}
			b.wantFree("k")
			b.wantPayment("k", "a", 1, false)
		})
	}
	t.Run("Store.Settle", func(t *testing.T) {
		b := setup(t, parts{})
		b.faults.Before("Settle", 1, hook)
		b.wantPayment("k", "a", 1, false)
		b.wantState("k", driver.StateCompleted)
		b.wantFree("k")
	})
	t.Run("Store.Settle in the background", func(t *testing.T) {
		b := setup(t, parts{opts: []idem.Option{idem.WithSettleTimeout(1)}})
		b.faults.FailBefore("Settle", 1, nil)
		b.faults.Before("Settle", 2, hook)
		b.wantPayment("k", "a", 1, false)
		b.wantFree("k")
		b.wantState("k", driver.StateCompleted)
	})
	t.Run("Store.Abort in the background", func(t *testing.T) {
		b := setup(t, parts{})
		b.faults.LoseReply("Begin", 1, nil)
		b.faults.Before("Abort", 1, hook)
		b.wantRefusal("k", "a", idem.CodeUnavailable)
		b.wantFree("k")
		b.wantState("k", driver.StateReleased)
	})
	t.Run("Store.DomainRetired", func(t *testing.T) {
		b := setup(t, parts{})
		b.begin(idem.NewKeyID("m1", "k"), "a", driver.Fence{Domain: "elsewhere", Token: 1})
		b.faults.Before("DomainRetired", 1, hook)
		b.wantRefusal("k", "a", idem.CodeUnavailable)
		b.wantFree("k")
	})
	t.Run("Locker.TryAcquire", func(t *testing.T) {
		b := setup(t, parts{})
		b.locks.Before("TryAcquire", 1, hook)
		b.wantRefusal("k", "a", idem.CodeUnavailable)
		b.wantPayment("k", "a", 1, false)
	})
	t.Run("Lease.Release", func(t *testing.T) {
		b := setup(t, parts{})
		b.locks.Before("Lease.Release", 1, hook)
		_, err := b.doWith("k", "a", answers(429)) // is answered after the release
		if err != nil {
			t.Errorf("Do() = %v, want the answer of the handler", err)
		}
		b.wantEvents(telemetry.EventReleaseFailed, 1)
	})
}

// touchy hands out leases whose Err panics from some call on.
type touchy struct {
	driver.Locker
	from int
}

type touchyLease struct {
	driver.Lease
	from, calls *int
}

func (l touchy) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, req)
	if err != nil {
		return nil, err
	}
	return touchyLease{lease, &l.from, new(int)}, nil
}

func (l touchyLease) Err() error {
	if *l.calls++; *l.calls >= *l.from {
		panic("lease")
	}
	return l.Lease.Err()
}

// TestPanicOfALeaseLeavesNoLock: it goes on in the goroutine of the request, whose server knows what to do
// with it, and the key is as after a crash.
func TestPanicOfALeaseLeavesNoLock(t *testing.T) {
	for name, from := range map[string]int{"after Begin": 1, "later": 2, "even later": 3} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{})
			engine := b.another(touchy{b.locker, from}, b.faults)
			func() {
				defer func() {
					if recover() == nil {
						t.Error("Do() returned, want the panic of the lease")
					}
				}()
				_, _ = engine.Do(t.Context(), b.operation("k", "a"), b.pay)
			}()
			b.wantFree("k")
			b.wantRefusal("k", "a", idem.CodeOutcomeUnknown)
		})
	}
}
