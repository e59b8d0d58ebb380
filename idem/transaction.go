package idem

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// transaction is the owner of an execution in joined mode. It has no fence, because what the handler
// writes there commits with its record or not at all.
type transaction struct{ driver.JoinedTx }

func (transaction) Fence() driver.Fence                            { return driver.Fence{} }
func (transaction) Err() error                                     { return nil }
func (transaction) watch(context.Context, context.CancelCauseFunc) {}

// doubtful is the claim on a committed record in joined mode whose outcome is in doubt. There is
// nothing to lock, because the record is settled by compare-and-set and no attempt runs while it is
// committed as open.
type doubtful struct{ mode *joinedMode }

// claim refuses a key that a transaction holds.
func (m *joinedMode) claim(ctx context.Context, r *request) (claim, error) {
	err := m.inStep(ctx, telemetry.StepLock, r, m.cfg.lockTimeout, func(ctx context.Context) (err error) {
		defer recovered("Held", &err)
		held, err := m.transactions.Held(ctx, r.id)
		switch {
		case err != nil:
			return errors.Join(driver.ErrUnavailable, err)
		case held:
			return driver.ErrLocked
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return doubtful{m}, nil
}

func (doubtful) Fence() driver.Fence                                { return driver.Fence{} }
func (doubtful) Err() error                                         { return nil }
func (doubtful) watch(context.Context, context.CancelCauseFunc)     {}
func (doubtful) giveBack(context.Context, *request, *driver.Record) {}

// Check has no end to tell of.
func (doubtful) Check(context.Context) (time.Duration, error) { return math.MaxInt64, nil }

func (d doubtful) record(ctx context.Context, r *request) (driver.Record, error) {
	return d.mode.read(ctx, r)
}

// outlives returns nil for a joined attempt, whose transaction is over. An attempt under a lock needs
// its domain to be retired.
func (d doubtful) outlives(ctx context.Context, _ *request, open driver.Attempt) error {
	if open.Fence.Domain == driver.JoinedDomain {
		return nil
	}
	return d.mode.foreign(ctx, open.Fence)
}

// wait asks again and again, less and less often, until the key looks free. It pauses first, because
// the store may have given up on a key that nobody holds.
func (m *joinedMode) wait(ctx context.Context, id driver.KeyID) error {
	pause := backoff{first: 5 * time.Millisecond, most: 250 * time.Millisecond}
	for sleep(ctx, pause.next()) {
		held, err := m.transactions.Held(ctx, id)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return errors.Join(driver.ErrUnavailable, err)
		case !held:
			return nil
		}
	}
	return ctx.Err()
}

// unread refuses the request, because there is no transaction without the store.
func (m *joinedMode) unread(_ context.Context, _ *request, _ driver.Record, _ Handler, err error) (*Result, error) {
	return nil, err
}

// seen returns the record as its owner sees it if an attempt runs in a transaction. The pending
// record is in that transaction, so the committed one does not show it.
func (m *joinedMode) seen(ctx context.Context, id driver.KeyID, stored driver.Record) (driver.Record, error) {
	if used(stored.State) {
		return stored, nil
	}
	held, err := m.transactions.Held(ctx, id)
	if err != nil {
		return stored, err
	}
	if !held {
		return m.store.Get(ctx, id) // it may have committed before we asked
	}
	stored.State, stored.Started = driver.StatePending, time.Time{}
	stored.Attempt.Number++
	return stored, nil
}

func (m *joinedMode) transactional() bool { return true }

// ping returns nil, because the store is pinged anyway.
func (m *joinedMode) ping(context.Context) error { return nil }

func (m *joinedMode) lockedBy() driver.Locker { return nil }

func (m *joinedMode) inspector() driver.LockInspector { return m }

// HeldBy implements [driver.LockInspector]. A transaction has no name.
func (m *joinedMode) HeldBy(ctx context.Context, id driver.KeyID) (driver.Holder, bool, error) {
	held, err := m.transactions.Held(ctx, id)
	return driver.Holder{}, held, err
}

// DomainOf implements [driver.LockInspector].
func (m *joinedMode) DomainOf(context.Context, driver.KeyID) (string, error) {
	return driver.JoinedDomain, nil
}
