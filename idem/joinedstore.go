package idem

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// joinedLocker is the [driver.Locker] of a joined engine for the parts of the protocol that settle an
// outcome in doubt. There is nothing to lock, because the record is settled by compare-and-set
// and no attempt runs while it is committed as open.
type joinedLocker struct{ store driver.JoinedStore }

// TryAcquire refuses a key that a transaction holds.
func (l joinedLocker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	held, err := l.store.Held(ctx, req.KeyID)
	switch {
	case err != nil:
		return nil, errors.Join(driver.ErrUnavailable, err)
	case held:
		return nil, driver.ErrLocked
	}
	return joinedLease{}, nil
}

// Wait asks again and again, less and less often, until the key looks free. It pauses first, because
// the store may have given up on a key that nobody holds.
func (l joinedLocker) Wait(ctx context.Context, id driver.KeyID) error {
	pause := backoff{first: 5 * time.Millisecond, most: 250 * time.Millisecond}
	for sleep(ctx, pause.next()) {
		held, err := l.store.Held(ctx, id)
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

// Ping returns nil, because the store is pinged anyway.
func (l joinedLocker) Ping(context.Context) error { return nil }

// Visibility is that of the store.
func (l joinedLocker) Visibility() driver.Visibility { return l.store.Visibility() }

// joinedLease stands for the lock of a committed record while its outcome in doubt is settled. It
// is later than every joined attempt.
type joinedLease struct{}

func (joinedLease) Fence() driver.Fence {
	return driver.Fence{Domain: driver.JoinedDomain, Token: math.MaxInt64}
}
func (joinedLease) Done() <-chan struct{}         { return nil }
func (joinedLease) Err() error                    { return nil }
func (joinedLease) Release(context.Context) error { return nil }
func (joinedLease) ReleaseInBackground()          {}

// Check has no end to tell of.
func (joinedLease) Check(context.Context) (time.Duration, error) { return math.MaxInt64, nil }
