package sweeper

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Lead waits until this instance is the leader, runs term, and returns when term
// has returned. The context of term ends with the leadership. Lead returns ctx's
// error if ctx ends first. The sweeper calls it again after a pause, after any
// result.
type Lead func(ctx context.Context, term func(context.Context) error) error

func alwaysLead(ctx context.Context, term func(context.Context) error) error { return term(ctx) }

const (
	// spareLocks is how many more locks [ByLock] asks for if a part of the lock service is away.
	spareLocks = 3
	// spareTerm is how long an instance leads by one of them, or waits for it, before it asks for the first one again.
	spareTerm = time.Minute
)

// ByLock makes the holder of one lock the leader. It is for lock services without
// an election of their own. The name must differ from every key in use, and from the names of
// the sweepers of other services that share the locker.
//
// If that lock cannot be asked for, such as one whose primary of a Redis Cluster is away, ByLock
// asks for one of a few others, because the records of the other primaries can be settled. Two
// instances may lead for a minute when the first lock is back. That is safe, and only costs calls.
//
// Without a locker it returns nil, which [New] refuses.
func ByLock(l driver.Locker, name string) Lead {
	if l == nil {
		return nil
	}
	first := idem.NewKeyID("idemkeeper sweeper", idem.Key(name))
	return func(ctx context.Context, term func(context.Context) error) error {
		led, err := leadBy(ctx, l, first, term)
		for spare := byte(1); spare <= spareLocks && !led && errors.Is(err, driver.ErrUnavailable) && ctx.Err() == nil; spare++ {
			id := first
			id[0] += 21 * spare // in another shard
			limited, cancel := context.WithTimeout(ctx, spareTerm)
			led, err = leadBy(limited, l, id, term)
			over := limited.Err() != nil
			cancel()
			if over && ctx.Err() == nil {
				return nil // the first lock is asked for again
			}
		}
		return err
	}
}

// leadBy runs term while it holds a lock. led is false if it did not get the lock.
func leadBy(ctx context.Context, l driver.Locker, id driver.KeyID, term func(context.Context) error) (led bool, err error) {
	lease, err := driver.Acquire(ctx, l, driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()})
	if err != nil {
		return false, err
	}
	defer lease.ReleaseInBackground()
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		select {
		case <-lease.Done():
			cancel(driver.ErrLeaseLost)
		case <-ctx.Done():
		}
	})
	return true, term(ctx)
}
