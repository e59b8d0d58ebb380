package idemtest

import (
	"context"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

var _ driver.Store = (*ReplicatedStore)(nil)

// ReplicatedStore is a store with a stale replica. The replica has the writes before the last
// Sync, and Failover puts it in the place of the store. It is safe for concurrent use. Make it
// with [NewReplicatedStore].
type ReplicatedStore struct {
	fresh func() driver.Store

	mu     sync.Mutex
	now    driver.Store
	writes []func(context.Context, driver.Store) // since the start; writes[:synced] have reached the replica
	synced int
}

// NewReplicatedStore returns a store made by fresh. Each failover asks fresh for another empty
// store, and repeats the writes of the replica there. Times are those of the repetition, unless
// the stores of fresh share a clock that stands still.
func NewReplicatedStore(fresh func() driver.Store) *ReplicatedStore {
	return &ReplicatedStore{fresh: fresh, now: fresh()}
}

// Sync brings the replica up to date.
func (r *ReplicatedStore) Sync() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced = len(r.writes)
}

// Failover promotes the replica. The writes after the last Sync are lost.
func (r *ReplicatedStore) Failover() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now, r.writes = r.fresh(), r.writes[:r.synced:r.synced]
	for _, write := range r.writes {
		write(context.Background(), r.now)
	}
}

// replicate makes a write, and keeps it for the replica.
func replicate[T any](ctx context.Context, r *ReplicatedStore, call func(context.Context, driver.Store) (T, error)) (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes = append(r.writes, func(ctx context.Context, s driver.Store) { _, _ = call(ctx, s) })
	return call(ctx, r.now)
}

// current is the store that answers now.
func (r *ReplicatedStore) current() driver.Store {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Get is [driver.Store.Get].
func (r *ReplicatedStore) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	return r.current().Get(ctx, id)
}

// Issue is [driver.Store.Issue].
func (r *ReplicatedStore) Issue(ctx context.Context, id driver.KeyID, ttl time.Duration) (driver.Record, error) {
	return replicate(ctx, r, func(ctx context.Context, s driver.Store) (driver.Record, error) { return s.Issue(ctx, id, ttl) })
}

// Begin is [driver.Store.Begin].
func (r *ReplicatedStore) Begin(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
	return replicate(ctx, r, func(ctx context.Context, s driver.Store) (driver.BeginResult, error) { return s.Begin(ctx, id, req) })
}

// Settle is [driver.Store.Settle].
func (r *ReplicatedStore) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
	if st.Repair != nil { // the caller may change it
		restore := *st.Repair
		st.Repair = &restore
	}
	return replicate(ctx, r, func(ctx context.Context, s driver.Store) (driver.SettleResult, error) { return s.Settle(ctx, id, st) })
}

// Abort is [driver.Store.Abort].
func (r *ReplicatedStore) Abort(ctx context.Context, id driver.KeyID, req driver.BeginRequest) error {
	_, err := replicate(ctx, r, func(ctx context.Context, s driver.Store) (struct{}, error) { return struct{}{}, s.Abort(ctx, id, req) })
	return err
}

// ListOpen is [driver.Store.ListOpen].
func (r *ReplicatedStore) ListOpen(ctx context.Context, q driver.OpenQuery) (driver.OpenPage, error) {
	return r.current().ListOpen(ctx, q)
}

// RetireDomain is [driver.Store.RetireDomain].
func (r *ReplicatedStore) RetireDomain(ctx context.Context, domain string, d driver.Decision) error {
	_, err := replicate(ctx, r, func(ctx context.Context, s driver.Store) (struct{}, error) {
		return struct{}{}, s.RetireDomain(ctx, domain, d)
	})
	return err
}

// DomainRetired is [driver.Store.DomainRetired].
func (r *ReplicatedStore) DomainRetired(ctx context.Context, domain string) (bool, error) {
	return r.current().DomainRetired(ctx, domain)
}

// NoteFence is [driver.Store.NoteFence].
func (r *ReplicatedStore) NoteFence(ctx context.Context, f driver.Fence) error {
	_, err := replicate(ctx, r, func(ctx context.Context, s driver.Store) (struct{}, error) { return struct{}{}, s.NoteFence(ctx, f) })
	return err
}

// HighestFence is [driver.Store.HighestFence].
func (r *ReplicatedStore) HighestFence(ctx context.Context, domain string) (uint64, error) {
	return r.current().HighestFence(ctx, domain)
}

// Ping is [driver.Store.Ping].
func (r *ReplicatedStore) Ping(ctx context.Context) error { return r.current().Ping(ctx) }

// Visibility is [driver.Store.Visibility].
func (r *ReplicatedStore) Visibility() driver.Visibility { return r.current().Visibility() }
