package idemtest

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

var _ driver.LockingStore = (*FaultyStore)(nil)

// FaultyStore is a store with [Faults]. A failed call returns no result beside its error, with
// or without effect. It takes locks if the wrapped store is a [driver.LockingStore].
type FaultyStore struct {
	*Faults
	store driver.Store
}

// NewFaultyStore wraps a store. Without faults it only counts.
func NewFaultyStore(s driver.Store) *FaultyStore {
	return &FaultyStore{Faults: newFaults("Get", "Issue", "Begin", "Settle", "Abort", "ListOpen", "RetireDomain", "DomainRetired", "NoteFence", "HighestFence", "Ping", "BeginLocked", "SettleUnlock"), store: s}
}

// Store returns the store behind the faults.
func (f *FaultyStore) Store() driver.Store { return f.store }

// passing calls through f and drops the result of a failed call.
func passing[T any](ctx context.Context, f *Faults, method string, call func(context.Context) (T, error)) (T, error) {
	// A late call runs after passing returned, so it must not write to the returned values.
	result := make(chan T, 1)
	err := f.pass(ctx, method, func(ctx context.Context) error {
		v, err := call(ctx)
		select {
		case result <- v:
		default:
		}
		if err != nil {
			return &answered{err}
		}
		return nil
	})
	var zero T
	if own, ok := errors.AsType[*answered](err); ok {
		return <-result, own.error // some errors come with a result
	}
	if err != nil {
		return zero, err
	}
	return <-result, nil
}

// answered is an error of the backend itself, not a fault.
type answered struct{ error }

func (a *answered) Unwrap() error { return a.error }

// Get is [driver.Store.Get].
func (f *FaultyStore) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	return passing(ctx, f.Faults, "Get", func(ctx context.Context) (driver.Record, error) { return f.store.Get(ctx, id) })
}

// Issue is [driver.Store.Issue].
func (f *FaultyStore) Issue(ctx context.Context, id driver.KeyID, ttl time.Duration) (driver.Record, error) {
	return passing(ctx, f.Faults, "Issue", func(ctx context.Context) (driver.Record, error) { return f.store.Issue(ctx, id, ttl) })
}

// Begin is [driver.Store.Begin].
func (f *FaultyStore) Begin(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
	return passing(ctx, f.Faults, "Begin", func(ctx context.Context) (driver.BeginResult, error) { return f.store.Begin(ctx, id, req) })
}

// Settle is [driver.Store.Settle].
func (f *FaultyStore) Settle(ctx context.Context, id driver.KeyID, s driver.Settlement) (driver.SettleResult, error) {
	return passing(ctx, f.Faults, "Settle", func(ctx context.Context) (driver.SettleResult, error) { return f.store.Settle(ctx, id, s) })
}

// Abort is [driver.Store.Abort].
func (f *FaultyStore) Abort(ctx context.Context, id driver.KeyID, req driver.BeginRequest) error {
	return f.pass(ctx, "Abort", func(ctx context.Context) error { return f.store.Abort(ctx, id, req) })
}

// ListOpen is [driver.Store.ListOpen].
func (f *FaultyStore) ListOpen(ctx context.Context, q driver.OpenQuery) (driver.OpenPage, error) {
	return passing(ctx, f.Faults, "ListOpen", func(ctx context.Context) (driver.OpenPage, error) { return f.store.ListOpen(ctx, q) })
}

// RetireDomain is [driver.Store.RetireDomain].
func (f *FaultyStore) RetireDomain(ctx context.Context, domain string, d driver.Decision) error {
	return f.pass(ctx, "RetireDomain", func(ctx context.Context) error { return f.store.RetireDomain(ctx, domain, d) })
}

// DomainRetired is [driver.Store.DomainRetired].
func (f *FaultyStore) DomainRetired(ctx context.Context, domain string) (bool, error) {
	return passing(ctx, f.Faults, "DomainRetired", func(ctx context.Context) (bool, error) { return f.store.DomainRetired(ctx, domain) })
}

// NoteFence is [driver.Store.NoteFence].
func (f *FaultyStore) NoteFence(ctx context.Context, fence driver.Fence) error {
	return f.pass(ctx, "NoteFence", func(ctx context.Context) error { return f.store.NoteFence(ctx, fence) })
}

// HighestFence is [driver.Store.HighestFence].
func (f *FaultyStore) HighestFence(ctx context.Context, domain string) (uint64, error) {
	return passing(ctx, f.Faults, "HighestFence", func(ctx context.Context) (uint64, error) { return f.store.HighestFence(ctx, domain) })
}

// Ping is [driver.Store.Ping].
func (f *FaultyStore) Ping(ctx context.Context) error {
	return f.pass(ctx, "Ping", f.store.Ping)
}

// Visibility is [driver.Store.Visibility].
func (f *FaultyStore) Visibility() driver.Visibility { return f.store.Visibility() }

// LockSpace is [driver.LockingStore.LockSpace]. It is nil if the wrapped store takes no locks.
func (f *FaultyStore) LockSpace() any {
	if s, ok := f.store.(driver.LockingStore); ok {
		return s.LockSpace()
	}
	return nil
}

// errTakesNoLocks is a mistake of the test.
var errTakesNoLocks = errors.New("idemtest: the wrapped store or locker is of no kind that shares its calls")

// BeginLocked is [driver.LockingStore.BeginLocked].
func (f *FaultyStore) BeginLocked(ctx context.Context, id driver.KeyID, req driver.BeginRequest, lock driver.OfferedLock) (driver.LockedBegin, error) {
	s, ok := f.store.(driver.LockingStore)
	if !ok {
		return driver.LockedBegin{}, errTakesNoLocks
	}
	return passing(ctx, f.Faults, "BeginLocked", func(ctx context.Context) (driver.LockedBegin, error) { return s.BeginLocked(ctx, id, req, lock) })
}

// SettleUnlock is [driver.LockingStore.SettleUnlock].
func (f *FaultyStore) SettleUnlock(ctx context.Context, id driver.KeyID, st driver.Settlement, lock driver.OfferedLock) (driver.SettleResult, error) {
	s, ok := f.store.(driver.LockingStore)
	if !ok {
		return driver.SettleResult{}, errTakesNoLocks
	}
	return passing(ctx, f.Faults, "SettleUnlock", func(ctx context.Context) (driver.SettleResult, error) { return s.SettleUnlock(ctx, id, st, lock) })
}
