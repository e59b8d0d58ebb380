package memory

import (
	"context"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

var _ idem.Store = (*Store)(nil)

// shards is the number of independently locked parts. Key IDs are hashes, so
// that they spread evenly.
const shards = 64

// Store is an [idem.Store] in the process. It is safe for concurrent use. Make
// it with [New].
type Store struct {
	now    func() time.Time
	base   time.Time // what times are packed relative to, so that they stay monotonic
	shards [shards]shard

	retired sync.Map // lock domains that are dead
}

// shard is one part of the records, behind its own lock.
type shard struct {
	mu     sync.Mutex
	base   time.Time
	live   map[idem.KeyID]*entry // whose attempt is open or is yet to come
	closed map[idem.KeyID][]byte // completed and expired ones, packed
	due    dueHeap               // when to look at entries again, earliest first
	_      [32]byte
}

// entry is a record and what is kept beside it.
type entry struct {
	record idem.Record
	// settlement is the ID of the settlement that stands, zero where none does.
	settlement idem.Nonce
	// before is the issued or released entry that a pending one replaced, for
	// Abort to put back.
	before *entry
}

// Option configures a [Store].
type Option func(*Store)

// WithClock makes the store read the time from now, which must be safe for
// concurrent use and should not go back. [time.Now] by default.
func WithClock(now func() time.Time) Option { return func(s *Store) { s.now = now } }

// New returns an empty store.
func New(opts ...Option) *Store {
	s := &Store{now: time.Now}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	s.base = s.now()
	for i := range s.shards {
		sh := &s.shards[i]
		sh.base, sh.live, sh.closed = s.base, make(map[idem.KeyID]*entry), make(map[idem.KeyID][]byte)
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
		n += len(sh.live) + len(sh.closed)
		sh.mu.Unlock()
	}
	return n
}

// lock locks the shard of id, removes what is due in it, and returns it with
// the time.
func (s *Store) lock(id idem.KeyID) (*shard, time.Time) {
	sh := &s.shards[id[0]%shards]
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
	sh, _ := s.lock(id)
	defer sh.mu.Unlock()
	if e := sh.get(id); e != nil {
		return e.record, nil
	}
	return idem.Record{}, nil
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
	e := &entry{record: idem.Record{
		State: idem.StateIssued, Kind: idem.IssuedToken, Created: now, TokenExpires: now.Add(ttl),
	}}
	sh.put(id, e, nil)
	return e.record, nil
}
