package memorystore

import (
	"context"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	parts "github.com/idemkeeper/idemkeeper/internal/shard"
)

var _ idem.Store = (*Store)(nil)

// Store is an [idem.Store] in the process. It is safe for concurrent use. Make
// it with [New].
type Store struct {
	now    func() time.Time
	base   time.Time // what times are packed relative to, so that they stay monotonic
	shards []shard   // by the first byte of the key ID, which is a hash; a power of two of them

	retired sync.Map // lock domains that are dead
}

// Option configures a [Store].
type Option func(*Store)

// WithClock makes the store read the time from now, which must be safe for
// concurrent use and should not go back. [time.Now] by default.
func WithClock(now func() time.Time) Option { return func(s *Store) { s.now = now } }

// New returns an empty store.
func New(opts ...Option) *Store {
	s := &Store{now: time.Now, shards: make([]shard, parts.Count())}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	s.base = s.now()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.base, sh.index = s.base, make(map[idem.KeyID]place)
	}
	return s
}

// Reach says that only this process sees the records.
func (s *Store) Reach() idem.Reach { return idem.ReachProcess }

// Ping returns nil, or ctx.Err().
func (s *Store) Ping(ctx context.Context) error { return ctx.Err() }

// Len returns the number of records, expired ones included as long as no call
// has removed them.
func (s *Store) Len() int {
	n := 0
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += len(sh.index)
		sh.mu.Unlock()
	}
	return n
}

func (s *Store) shard(id idem.KeyID) *shard { return &s.shards[int(id[0])&(len(s.shards)-1)] }

// lock locks the shard of id, removes what is due in it, and returns it with
// the time.
func (s *Store) lock(id idem.KeyID) (*shard, time.Time) {
	sh := s.shard(id)
	sh.mu.Lock()
	now := sh.normal(s.now()) // under the lock, so that times within a shard are in order
	sh.sweep(now)
	return sh, now
}

// Get returns the record of id. The error is ctx.Err() or nil.
func (s *Store) Get(ctx context.Context, id idem.KeyID) (idem.Record, error) {
	if err := ctx.Err(); err != nil {
		return idem.Record{}, err
	}
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.get(id)
	if e != nil && sh.sweep(sh.normal(s.now())) { // where there is none, time changes nothing
		e = sh.get(id)
	}
	if e == nil {
		return idem.Record{}, nil
	}
	return e.record, nil
}

// Issue makes a record in StateIssued. One that exists is returned as it is.
func (s *Store) Issue(ctx context.Context, id idem.KeyID, ttl time.Duration) (idem.Record, error) {
	if err := ctx.Err(); err != nil {
		return idem.Record{}, err
	}
	sh, now := s.lock(id)
	defer sh.mu.Unlock()
	if e := sh.get(id); e != nil {
		return e.record, nil
	}
	e := sh.fresh()
	e.record = idem.Record{State: idem.StateIssued, Kind: idem.IssuedToken, Created: now, TokenExpires: now.Add(ttl)}
	sh.put(id, e, nil)
	return e.record, nil
}
