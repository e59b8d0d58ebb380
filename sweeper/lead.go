package sweeper

import (
	"context"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Lead waits until this instance is the leader, runs term, and returns when term
// has returned. The context of term ends with the leadership. Lead returns ctx's
// error if ctx ends first. The sweeper calls it again after a pause, after any
// result.
type Lead func(ctx context.Context, term func(context.Context) error) error

func alwaysLead(ctx context.Context, term func(context.Context) error) error { return term(ctx) }

// ByLock makes the holder of one lock the leader. It is for lock services without
// an election of their own. The name must differ from every key in use, and from the names of
// the sweepers of other services that share the locker.
func ByLock(l driver.Locker, name string) Lead {
	id := idem.NewKeyID("idemkeeper sweeper", idem.Key(name))
	return func(ctx context.Context, term func(context.Context) error) error {
		lease, err := driver.Acquire(ctx, l, driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()})
		if err != nil {
			return err
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
		return term(ctx)
	}
}
