package idem_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// suspendedLocker hands out a lease whose clock has run out and whose timer has not fired.
type suspendedLocker struct {
	driver.Locker
	lease *suspendedLease
}

func (l *suspendedLocker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, req)
	if err != nil {
		return nil, err
	}
	l.lease = &suspendedLease{Lease: lease}
	return l.lease, nil
}

type suspendedLease struct {
	driver.Lease
	over bool
}

func (l *suspendedLease) Err() error {
	if l.over {
		return driver.ErrLeaseLost
	}
	return l.Lease.Err()
}

// Timers stand still in a suspended machine, so Done comes late. A handler that looks at its
// context before its next step learns of the loss all the same.
func TestContextOfAHandlerReadsTheLeaseClock(t *testing.T) {
	for name, look := range map[string]func(context.Context) error{
		"Err":   context.Context.Err,
		"Cause": context.Cause,
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { p.HandlerTimeout = time.Hour }})
			locker := &suspendedLocker{Locker: b.locker}
			_, err := b.another(locker, b.store).Do(context.Background(), b.operation("k", "a"), func(ctx context.Context) (idem.Response, error) {
				child, cancel := context.WithCancel(ctx)
				defer cancel()
				if err := look(ctx); err != nil {
					t.Errorf("%s() before = %v, want <nil>", name, err)
				}
				locker.lease.over = true
				if look(ctx) == nil || !errors.Is(context.Cause(ctx), driver.ErrLeaseLost) || child.Err() == nil {
					t.Errorf("Err() = %v, Cause() = %v, Err() of a child = %v after the loss, want the loss",
						ctx.Err(), context.Cause(ctx), child.Err())
				}
				return idem.Response{Status: 500}, nil
			})
			b.wantRefused(err, idem.CodeOwnershipLost)
		})
	}
}
