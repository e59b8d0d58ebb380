package idemtest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
)

// mutantVariable names the broken Locker for the suite in a child process.
const mutantVariable = "IDEMTEST_LOCKER_MUTANT"

// shortly is the time-out of a mutant that lets the suite wait in vain.
const shortly = 100 * time.Millisecond

// mutants are Lockers with one fault each, and the subtest for it.
var mutants = map[string]struct {
	caughtBy string
	harness  idemtest.LockerHarness
}{
	"clients do not share": {"a held lock is refused to another client", idemtest.LockerHarness{
		New:    newMutant(mutant{}),
		Second: func(*testing.T, driver.Locker) driver.Locker { return memorylock.New() },
	}},
	"domains differ": {"the fence grows from holder to holder", idemtest.LockerHarness{
		New: newMutant(mutant{fence: func(f driver.Fence) driver.Fence {
			return driver.Fence{Domain: driver.NewNonce().String(), Token: f.Token}
		}}),
	}},
	"fences fall": {"the fence grows when the key rested", idemtest.LockerHarness{
		New: newMutant(mutant{fence: func(f driver.Fence) driver.Fence {
			return driver.Fence{Domain: f.Domain, Token: ^f.Token}
		}}),
	}},
	"refusal is another error": {"a held lock is refused", idemtest.LockerHarness{
		New: newMutant(mutant{refuse: func(error) error { return errors.New("node exists") }}),
	}},
	"an ended context takes the lock": {"a context that has ended takes no lock", idemtest.LockerHarness{
		New: newMutant(mutant{leak: true}), Timeout: shortly,
	}},
	"a lease ends with its context": {"a lease outlives the context", idemtest.LockerHarness{
		New: newMutant(mutant{boundToContext: true}),
	}},
	"a stale release frees": {"a stale release leaves another client's lock", idemtest.LockerHarness{
		New: newMutant(mutant{release: func(m *mutant, id driver.KeyID, _ driver.Lease) { m.Revoke(id) }}),
	}},
	"release does nothing": {"many releases at once release once", idemtest.LockerHarness{
		New: newMutant(mutant{release: func(*mutant, driver.KeyID, driver.Lease) {}}), Timeout: shortly,
	}},
	"release counts as loss": {"a released lease is over without an error", idemtest.LockerHarness{
		New: newMutant(mutant{release: func(m *mutant, id driver.KeyID, _ driver.Lease) { m.Revoke(id) }}),
	}},
	"check never says no": {"an unwatched lease is done", idemtest.LockerHarness{
		New: newMutant(mutant{blindCheck: true}),
	}},
	"a loss goes unnoticed": {"a lost lease says so", idemtest.LockerHarness{
		New: newMutant(mutant{}), Timeout: shortly,
		Lose: func(*testing.T, driver.Locker, driver.KeyID, driver.Lease) {},
	}},
	"a loss counts as release": {"a lost lease says so", idemtest.LockerHarness{
		New:  newMutant(mutant{}),
		Lose: func(_ *testing.T, _ driver.Locker, _ driver.KeyID, le driver.Lease) { le.ReleaseInBackground() },
	}},
	"waiters wake too early": {"a waiter is not woken while the lock is held", idemtest.LockerHarness{
		New: newMutant(mutant{wait: func(context.Context, *mutant, driver.KeyID) error { return nil }}),
	}},
	"waiters never wake": {"a waiter of each client hears", idemtest.LockerHarness{
		New: newMutant(mutant{wait: func(ctx context.Context, _ *mutant, _ driver.KeyID) error {
			<-ctx.Done()
			return ctx.Err()
		}}), Timeout: shortly,
	}},
	"one waiter wakes": {"many waiters all hear", idemtest.LockerHarness{
		New: newMutant(mutant{wait: func(ctx context.Context, m *mutant, id driver.KeyID) error {
			if m.waits.Add(1) > 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return m.Locker.Wait(ctx, id)
		}}), Timeout: shortly,
	}},
	"waiters ignore their context": {"a waiter whose context ends", idemtest.LockerHarness{
		New: newMutant(mutant{wait: func(_ context.Context, m *mutant, id driver.KeyID) error {
			return m.Locker.Wait(context.Background(), id)
		}}), Timeout: shortly,
	}},
	"everybody gets the lock": {"the lock excludes everybody else", idemtest.LockerHarness{
		New: newMutant(mutant{fresh: true}),
	}},
}

// The subtest for a fault has to notice it. The suite runs in a child process, because it has
// to fail.
func TestLockerSuiteCatches(t *testing.T) {
	t.Parallel()
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pattern := "^TestLockerMutant$/" + strings.ReplaceAll(m.caughtBy, " ", "_")
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", pattern, "-test.v")
			cmd.Env = append(os.Environ(), mutantVariable+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "    --- FAIL: TestLockerMutant/") {
				t.Errorf("RunLocker(%s)/%s = %v, want a failed subtest; it printed\n%s", name, m.caughtBy, err, out)
			}
		})
	}
}

// TestLockerMutant runs the suite on the mutant in the environment, or else on a correct
// Locker.
func TestLockerMutant(t *testing.T) {
	if name := os.Getenv(mutantVariable); name != "" {
		idemtest.RunLocker(t, mutants[name].harness)
		return
	}
	idemtest.RunLocker(t, idemtest.LockerHarness{New: newMutant(mutant{})})
}

// mutant is a memory Locker with faults.
type mutant struct {
	*memorylock.Locker
	fence          func(driver.Fence) driver.Fence
	refuse         func(error) error
	release        func(*mutant, driver.KeyID, driver.Lease)
	wait           func(context.Context, *mutant, driver.KeyID) error
	leak           bool // an ended context takes the lock for ever
	boundToContext bool
	blindCheck     bool
	fresh          bool // every call has a Locker of its own
	waits          *atomic.Int64
}

func newMutant(faults mutant) func(*testing.T) driver.Locker {
	return func(*testing.T) driver.Locker {
		m := faults
		m.Locker, m.waits = memorylock.New(), new(atomic.Int64)
		return &m
	}
}

func (m *mutant) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	l := m.Locker
	if m.fresh {
		l = memorylock.New()
	}
	if m.leak && ctx.Err() != nil {
		_, _ = l.TryAcquire(context.Background(), req)
	}
	lease, err := l.TryAcquire(ctx, req)
	if err != nil {
		if m.refuse != nil {
			err = m.refuse(err)
		}
		return nil, err
	}
	return &mutantLease{Lease: lease, m: m, id: req.KeyID, ctx: ctx}, nil
}

func (m *mutant) Wait(ctx context.Context, id driver.KeyID) error {
	if m.wait != nil {
		return m.wait(ctx, m, id)
	}
	return m.Locker.Wait(ctx, id)
}

type mutantLease struct {
	driver.Lease
	m   *mutant
	id  driver.KeyID
	ctx context.Context // of the call that took the lock
}

func (le *mutantLease) Fence() driver.Fence {
	if le.m.fence != nil {
		return le.m.fence(le.Lease.Fence())
	}
	return le.Lease.Fence()
}

func (le *mutantLease) Check(ctx context.Context) (time.Duration, error) {
	if le.m.boundToContext && le.ctx.Err() != nil {
		le.Lease.ReleaseInBackground()
	}
	left, err := le.Lease.Check(ctx)
	if le.m.blindCheck {
		return time.Hour, nil
	}
	return left, err
}

func (le *mutantLease) Release(ctx context.Context) error {
	if le.m.release != nil {
		le.m.release(le.m, le.id, le.Lease)
		return nil
	}
	return le.Lease.Release(ctx)
}

func (le *mutantLease) ReleaseInBackground() { _ = le.Release(context.Background()) }
