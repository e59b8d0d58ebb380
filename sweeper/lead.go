package sweeper

import (
	"context"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Lead runs term while this instance is the leader, and returns when that has
// returned. The context of term ends when the leadership is over. It returns
// ctx's error where ctx ended before that came. The sweeper calls it again after
// a while, whatever it returns.
type Lead func(ctx context.Context, term func(context.Context) error) error

// alone leads always.
func alone(ctx context.Context, term func(context.Context) error) error { return term(ctx) }

// ByLock makes the leader whoever holds a lock of this name, which a scope and
// a key must not have: for lock services without elections of their own.
func ByLock(l idem.Locker, name string) Lead {
	id := idem.NewKeyID("idemkeeper sweeper", idem.Key(name))
	return func(ctx context.Context, term func(context.Context) error) error {
		lease, err := idem.Acquire(ctx, l, idem.LockRequest{KeyID: id, Nonce: idem.NewNonce()})
		if err != nil {
			return err
		}
		defer lease.ReleaseBehind()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		over := make(chan struct{})
		defer func() { <-over }()
		go func() {
			defer close(over)
			select {
			case <-lease.Done():
				cancel(idem.ErrLeaseLost)
			case <-ctx.Done():
			}
		}()
		defer cancel(nil) // before the wait for over
		return term(ctx)
	}
}
