package redislock

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/redislocks"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

var (
	_ driver.OfferingLocker = (*Locker)(nil)
	_ driver.LockOffer      = offer{}
)

// LockSpace implements [driver.OfferingLocker]. A store on the same client and with the same prefix can take the locks.
func (l *Locker) LockSpace() any { return redislocks.Space(l.keeper.client, l.prefix) }

// Offer implements [driver.OfferingLocker].
func (l *Locker) Offer(ctx context.Context, req driver.LockRequest) (driver.LockOffer, error) {
	o, err := l.leases.Offer(ctx, req)
	if err != nil {
		return nil, err
	}
	return offer{o, l.keeper.offered(o.Lock()), l.keeper.health}, nil
}

// offer is a lock that a store may take.
type offer struct {
	of     *leasing.Offer
	lock   driver.OfferedLock
	health *leasing.Health
}

// Lock implements [driver.LockOffer].
func (o offer) Lock() driver.OfferedLock { return o.lock }

// Taken implements [driver.LockOffer].
func (o offer) Taken(f driver.Fence) (driver.OfferedLease, error) {
	o.NotTaken(nil)
	return leasing.Offered(o.lock)(o.of.Taken(f))
}

// NotTaken implements [driver.LockOffer].
func (o offer) NotTaken(err error) {
	o.health.Note(context.Background(), redisserver.ShardOf(o.of.Lock().ID), time.Now(), err)
}

// Retake implements [driver.LockOffer].
func (o offer) Retake(ctx context.Context) (driver.OfferedLease, error) {
	return leasing.Offered(o.lock)(o.of.Retake(ctx))
}
