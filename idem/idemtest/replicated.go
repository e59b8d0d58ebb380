package idemtest

import (
	"context"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

var _ idem.Store = (*ReplicatedStore)(nil)

// ReplicatedStore is a store with a stale replica. The replica has the writes before the last
// Sync, and Failover puts it in the place of the store. It is safe for concurrent use. Make it
// with [NewReplicatedStore].
type ReplicatedStore struct {
	fresh func() idem.Store

	mu     sync.Mutex
	now    idem.Store
	writes []func(context.Context, idem.Store) // since the start; writes[:synced] have reached the replica
	synced int
}

// NewReplicatedStore returns a store made by fresh. Each failover asks fresh for another empty
// store, and repeats the writes of the replica there. Times are those of the repetition, unless
// the stores of fresh share a clock that stands still.
func NewReplicatedStore(fresh func() idem.Store) *ReplicatedStore {
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
func replicate[T any](ctx context.Context, r *ReplicatedStore, call func(context.Context, idem.Store) (T, error)) (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes = append(r.writes, func(ctx context.Context, s idem.Store) { _, _ = call(ctx, s) })
	return call(ctx, r.now)
}

// current is the store that answers now.
func (r *ReplicatedStore) current() idem.Store {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Get is [idem.Store.Get].
func (r *ReplicatedStore) Get(ctx context.Context, id idem.KeyID) (idem.Record, error) {
	return r.current().Get(ctx, id)
}

// Issue is [idem.Store.Issue].
func (r *ReplicatedStore) Issue(ctx context.Context, id idem.KeyID, ttl time.Duration) (idem.Record, error) {
	return replicate(ctx, r, func(ctx context.Context, s idem.Store) (idem.Record, error) { return s.Issue(ctx, id, ttl) })
}

// Begin is [idem.Store.Begin].
func (r *ReplicatedStore) Begin(ctx context.Context, id idem.KeyID, req idem.BeginRequest) (idem.BeginResult, error) {
	return replicate(ctx, r, func(ctx context.Context, s idem.Store) (idem.BeginResult, error) { return s.Begin(ctx, id, req) })
}

// Settle is [idem.Store.Settle].
func (r *ReplicatedStore) Settle(ctx context.Context, id idem.KeyID, st idem.Settlement) (idem.SettleResult, error) {
	if st.Repair != nil { // the caller may change it
		restore := *st.Repair
		st.Repair = &restore
	}
	return replicate(ctx, r, func(ctx context.Context, s idem.Store) (idem.SettleResult, error) { return s.Settle(ctx, id, st) })
}

// Abort is [idem.Store.Abort].
func (r *ReplicatedStore) Abort(ctx context.Context, id idem.KeyID, req idem.BeginRequest) error {
	_, err := replicate(ctx, r, func(ctx context.Context, s idem.Store) (struct{}, error) { return struct{}{}, s.Abort(ctx, id, req) })
	return err
}

// ListOpen is [idem.Store.ListOpen].
func (r *ReplicatedStore) ListOpen(ctx context.Context, q idem.OpenQuery) (idem.OpenPage, error) {
	return r.current().ListOpen(ctx, q)
}

// RetireDomain is [idem.Store.RetireDomain].
func (r *ReplicatedStore) RetireDomain(ctx context.Context, domain string, d idem.Decision) error {
	_, err := replicate(ctx, r, func(ctx context.Context, s idem.Store) (struct{}, error) {
		return struct{}{}, s.RetireDomain(ctx, domain, d)
	})
	return err
}

// DomainRetired is [idem.Store.DomainRetired].
func (r *ReplicatedStore) DomainRetired(ctx context.Context, domain string) (bool, error) {
	return r.current().DomainRetired(ctx, domain)
}

// NoteFence is [idem.Store.NoteFence].
func (r *ReplicatedStore) NoteFence(ctx context.Context, f idem.Fence) error {
	_, err := replicate(ctx, r, func(ctx context.Context, s idem.Store) (struct{}, error) { return struct{}{}, s.NoteFence(ctx, f) })
	return err
}

// HighestFence is [idem.Store.HighestFence].
func (r *ReplicatedStore) HighestFence(ctx context.Context, domain string) (uint64, error) {
	return r.current().HighestFence(ctx, domain)
}

// Ping is [idem.Store.Ping].
func (r *ReplicatedStore) Ping(ctx context.Context) error { return r.current().Ping(ctx) }

// Visibility is [idem.Store.Visibility].
func (r *ReplicatedStore) Visibility() idem.Visibility { return r.current().Visibility() }
