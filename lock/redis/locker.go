package redislock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/background"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

var _ idem.Locker = (*Locker)(nil)

var (
	errClosed   = errors.New("locker is closed")
	errNoAnswer = errors.New("it did not answer a moment ago")
)

// Locker is an exclusive lock per key ID: a key with a time to live. It is safe
// for concurrent use. Make it with [New]; end it with [Locker.Close] or
// [Locker.Abandon].
type Locker struct {
	client goredis.UniversalClient
	keys   layout
	ttl    time.Duration
	millis string // ttl, as Redis takes it
	log    *slog.Logger
	health *health
	evicts atomic.Pointer[error] // what is wrong with a server's eviction policy; nil: nothing
	now    leaseclock.Source

	ctx        context.Context // of the background; ends with the locker
	stop       context.CancelFunc
	wg         sync.WaitGroup     // every goroutine
	background background.Tracker // releases that were not acknowledged yet
	ended      chan struct{}      // closed when Close or Abandon is through

	mu      sync.Mutex
	held    map[*lease]struct{}
	watches map[idem.KeyID]*watch
	closing bool // no new locks
	stopped bool // no new goroutines
}

// New returns a locker on client, which stays the caller's to close, after the
// locker. It asks every primary whether it is fit to keep locks, and starts the
// heartbeat.
//
// It refuses a client that reads from replicas or ignores the deadlines of
// contexts, a server that evicts keys, and options that make no sense. A server
// that begins to evict later is noticed within seconds, and no lock is taken until
// it no longer does. The error wraps idem.ErrUnavailable where a server cannot be reached.
func New(ctx context.Context, client goredis.UniversalClient, opts ...Option) (*Locker, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if err := checkClient(client); err != nil {
		return nil, err
	}
	if err := checkServers(ctx, client); err != nil {
		return nil, err
	}
	parts := 1
	if _, cluster := client.(*goredis.ClusterClient); cluster {
		parts = Shards
	}
	l := &Locker{
		client: client, keys: layout{cfg.prefix}, ttl: cfg.ttl, millis: millisOf(cfg.ttl), log: cfg.log, health: newHealth(parts), now: cfg.now,
		ended: make(chan struct{}),
		held:  make(map[*lease]struct{}), watches: make(map[idem.KeyID]*watch),
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.wg.Go(l.beat)
	l.wg.Go(func() { l.watchEviction(cfg.evictionEvery) })
	return l, nil
}

// Reach says that other processes see the locks.
func (l *Locker) Reach() idem.Reach { return idem.ReachShared }

// TryAcquire implements [idem.Locker], in one round trip. Its errors wrap
// idem.ErrLocked, or idem.ErrUnavailable, which a context that has ended counts
// as. The end of ctx is noticed at once where it is a deadline; a cancelled call
// returns when Redis answers, or the client's own time-out is over.
func (l *Locker) TryAcquire(ctx context.Context, req idem.LockRequest) (idem.Lease, error) {
	if err := l.askable(shardOf(req.KeyID)); err != nil {
		return nil, unavailable("acquire", err)
	}
	if ctx.Err() != nil {
		return nil, unavailable("acquire", context.Cause(ctx))
	}
	owner, sent, asked := idem.NewNonce().String(), l.now(), time.Now()
	call, cancel := until(ctx, asked.Add(trustOf(l.ttl))) // a later answer would be of no use
	defer cancel()
	fence, taken, err := l.acquire(call, req, owner)
	l.health.note(shardOf(req.KeyID), asked, err)
	if err != nil {
		l.undo(req.KeyID, owner) // it may have been applied, or may be yet
		return nil, unavailable("acquire", err)
	}
	if !taken {
		return nil, fmt.Errorf("lock/redis: acquire: %w", idem.ErrLocked)
	}
	le := newLease(l, req.KeyID, owner, fence, sent)
	if err := l.grant(le); err != nil {
		l.undo(req.KeyID, owner)
		return nil, unavailable("acquire", err)
	}
	return le, nil
}

// until bounds a context that does not end before by itself.
func until(ctx context.Context, end time.Time) (context.Context, context.CancelFunc) {
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, end)
}

// askable returns nil when a shard may be asked.
func (l *Locker) askable(shard int) error {
	l.mu.Lock()
	closing := l.closing
	l.mu.Unlock()
	if closing {
		return errClosed
	}
	if err := l.evicts.Load(); err != nil {
		return *err
	}
	if !l.health.admit(shard) {
		return errNoAnswer
	}
	return nil
}

// grant puts a lease among those that are renewed.
func (l *Locker) grant(le *lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return errClosed
	}
	if !le.start() {
		return errors.New("the lock came too late")
	}
	l.held[le] = struct{}{}
	return nil
}

// drop forgets a lease that has ended.
func (l *Locker) drop(le *lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, le)
}

// Ping implements [idem.Locker]. It writes, because a server that answers may
// still refuse to take a lock: a replica, one without memory, one without the
// replicas that it wants. In a cluster it writes to every shard.
func (l *Locker) Ping(ctx context.Context) error {
	l.mu.Lock()
	closing := l.closing
	l.mu.Unlock()
	if closing {
		return unavailable("ping", errClosed)
	}
	if err := l.evicts.Load(); err != nil {
		return unavailable("ping", *err)
	}
	shards := len(l.health.closed)
	sent := time.Now()
	_, err := l.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		for shard := range shards {
			pipe.Set(ctx, l.keys.ping(shard), "", l.ttl)
		}
		return nil
	})
	if err != nil {
		return unavailable("ping", err)
	}
	for shard := range shards {
		l.health.note(shard, sent, nil)
	}
	return nil
}
