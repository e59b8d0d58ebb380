package memorylock

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	parts "github.com/idemkeeper/idemkeeper/internal/shard"
)

var _ idem.Locker = (*Locker)(nil)

// lastFence is the latest fencing token handed out. It is the process's, not a
// Locker's, so that Lockers that share a domain never hand out one token twice.
var lastFence = func() *atomic.Uint64 {
	var f atomic.Uint64
	f.Store(uint64(max(time.Now().UnixNano(), 1)))
	return &f
}()

// Locker is an in-process lock. It is safe for concurrent use and must not be
// copied. Make one with [New]; it needs no closing.
type Locker struct {
	domain string
	shards []shard // by the first byte of the key ID, which is a hash; a power of two of them
}

// shard guards the locks of its key IDs and everything that changes in their
// leases.
type shard struct {
	mu   sync.Mutex
	held map[idem.KeyID]*lease
	_    [48]byte // keeps neighbours off this cache line
}

// Option changes how [New] makes a Locker.
type Option func(*Locker)

// WithDomain sets the name of the lock domain. The default is a random UUID
// for each Locker, which is right unless whoever owns the token store names
// the domain: two Lockers must share a name only where one takes over from the
// other, or where their keys differ. The empty name leaves the default.
func WithDomain(name string) Option {
	return func(l *Locker) {
		if name != "" {
			l.domain = name
		}
	}
}

// New returns a Locker that holds nothing. Nil options are ignored.
func New(opts ...Option) *Locker {
	l := &Locker{domain: newUUID(), shards: make([]shard, parts.Count())}
	for i := range l.shards {
		l.shards[i].held = make(map[idem.KeyID]*lease)
	}
	for _, opt := range opts {
		if opt != nil {
			opt(l)
		}
	}
	return l
}

// Domain returns the lock domain: that of every fence handed out.
func (l *Locker) Domain() string { return l.domain }

// Reach returns [idem.ReachProcess].
func (*Locker) Reach() idem.Reach { return idem.ReachProcess }

// Ping returns nil, or ctx.Err(): memory can always be reached.
func (*Locker) Ping(ctx context.Context) error { return ctx.Err() }

// TryAcquire implements [idem.Locker]. It never blocks. Its errors are
// [idem.ErrLocked] and ctx.Err(), when ctx has ended before the call. The lock
// is not reentrant, for the same nonce neither.
func (l *Locker) TryAcquire(ctx context.Context, req idem.LockRequest) (idem.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := l.shard(req.KeyID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[req.KeyID] != nil {
		return nil, idem.ErrLocked
	}
	// Taken under the mutex, so that tokens of one key rise in the order in
	// which the lock was held.
	le := &lease{shard: s, request: req, fence: idem.Fence{Domain: l.domain, Token: lastFence.Add(1)}}
	s.held[req.KeyID] = le
	return le, nil
}

// Wait implements [idem.Locker]: it returns nil when the lock is free, or as
// soon as the lease that holds it now has ended. Nothing stays behind when ctx
// ends first.
func (l *Locker) Wait(ctx context.Context, id idem.KeyID) error {
	s := l.shard(id)
	s.mu.Lock()
	holder := s.held[id]
	if holder == nil {
		s.mu.Unlock()
		return nil
	}
	done := holder.doneLocked()
	s.mu.Unlock()

	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Holder returns the nonce of the attempt that holds the lock, and false when
// the lock is free.
func (l *Locker) Holder(id idem.KeyID) (idem.Nonce, bool) {
	s := l.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if le := s.held[id]; le != nil {
		return le.request.Nonce, true
	}
	return idem.Nonce{}, false
}

// Revoke takes the lock away from its holder, as the expiry of a session does
// with a lock on a server: the lease's Done is closed with
// [idem.ErrLeaseLost] and the lock is free. It reports whether anybody held
// it. It is meant for tests of what a handler does then.
func (l *Locker) Revoke(id idem.KeyID) bool {
	s := l.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	le := s.held[id]
	if le == nil {
		return false
	}
	le.endLocked(lost)
	return true
}

func (l *Locker) shard(id idem.KeyID) *shard { return &l.shards[int(id[0])&(len(l.shards)-1)] }

// newUUID returns a random UUID (RFC 9562, section 5.4).
func newUUID() string {
	u := idem.NewNonce()
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}
