package sqllock

import (
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/sqllocks"
)

var (
	_ driver.OfferingLocker = (*Locker)(nil)
	_ driver.LockOffer      = offer{}
)

// LockSpace implements [driver.OfferingLocker]. A store of tokenstore/sql in PostgreSQL on the same pool and with the same tables
// can take the locks.
func (l *Locker) LockSpace() any {
	return sqllocks.Space{DB: l.keeper.db, Schema: l.keeper.names.schema, Prefix: l.keeper.names.prefix}
}

// Offer implements [driver.OfferingLocker].
func (l *Locker) Offer(ctx context.Context, req driver.LockRequest) (driver.LockOffer, error) {
	o, err := l.leases.Offer(ctx, req)
	if err != nil {
		return nil, err
	}
	lock := o.Lock()
	return offer{o, l.keeper, driver.OfferedLock{Owner: string(lock.Owner[:]), Nonce: req.Nonce, Note: thisProcess, TTL: time.Duration(l.keeper.ttl) * time.Microsecond},
		l.keeper.unreplicated(), leaseclock.Now()}, nil
}

// errLate is the reason of driver.ErrUnavailable for a fence that may be stale.
var errLate = fmt.Errorf("the answer took more than %v", maxAcquire)

// offer is a lock that a store may take.
type offer struct {
	of     *leasing.Offer
	keeper *keeper
	lock   driver.OfferedLock
	before uint64             // commits without a standby
	made   leaseclock.Instant // goes on while the machine is suspended
}

// Lock implements [driver.LockOffer].
func (o offer) Lock() driver.OfferedLock { return o.lock }

// Taken implements [driver.LockOffer].
func (o offer) Taken(f driver.Fence) (driver.OfferedLease, error) {
	o.NotTaken(nil)
	switch {
	case o.keeper.unreplicated() != o.before:
		return nil, o.keeper.unavailable(errUnreplicated)
	case leaseclock.Now().Sub(o.made) >= maxAcquire:
		return nil, o.keeper.unavailable(errLate)
	}
	return leasing.Offered(o.lock)(o.of.Taken(f))
}

// NotTaken implements [driver.LockOffer].
func (o offer) NotTaken(err error) {
	o.keeper.health.Note(context.Background(), 0, time.Now(), err)
}

// Retake implements [driver.LockOffer].
func (o offer) Retake(ctx context.Context) (driver.OfferedLease, error) {
	return leasing.Offered(o.lock)(o.of.Retake(ctx))
}
