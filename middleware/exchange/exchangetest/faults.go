package exchangetest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
)

var errDown = errors.Join(idem.ErrUnavailable, errors.New("secret-host:6379: connection refused"))

// faultyStore is a store that can be down or have lost its records.
type faultyStore struct {
	idem.Store
	len   func() int
	fault atomic.Pointer[error]
}

func (s *faultyStore) fail(err error) { s.fault.Store(&err) }

func (s *faultyStore) Get(ctx context.Context, id idem.KeyID) (idem.Record, error) {
	if err := s.fault.Load(); err != nil {
		return idem.Record{}, *err
	}
	return s.Store.Get(ctx, id)
}

func (s *faultyStore) Issue(ctx context.Context, id idem.KeyID, ttl time.Duration) (idem.Record, error) {
	if err := s.fault.Load(); err != nil {
		return idem.Record{}, *err
	}
	return s.Store.Issue(ctx, id, ttl)
}

// faultyLocker is a locker that can be down.
type faultyLocker struct {
	*memorylock.Locker
	fault atomic.Pointer[error]
}

func (l *faultyLocker) TryAcquire(ctx context.Context, req idem.LockRequest) (idem.Lease, error) {
	if err := l.fault.Load(); err != nil {
		return nil, *err
	}
	return l.Locker.TryAcquire(ctx, req)
}
