package redislock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/background"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

var _ idem.Locker = (*Locker)(nil)

var (
	errClosed   = errors.New("locker is closed")
	errNoAnswer = errors.New("no answer from Redis a moment ago")
)

// Locker is an exclusive lock per key ID: a key with a time to live. It is safe for
// concurrent use. Make it with [New], and end it with [Locker.Close] or
// [Locker.Abandon].
type Locker struct {
	keeper *keeper
	ttl    time.Duration
	log    *slog.Logger
	evicts *redisserver.Eviction
	now    leaseclock.Source
	waits  waits

	ctx        context.Context // of the goroutines; ends with the locker
	stop       context.CancelFunc
	wg         sync.WaitGroup     // all goroutines
	background background.Tracker // releases that Redis has not acknowledged yet
	ended      chan struct{}      // closed when Close or Abandon returns

	mu      sync.Mutex
	held    map[*lease]struct{}
	closing bool // no new locks
	stopped bool // no new goroutines
}

// New returns a locker on client. The caller closes the client after the locker. New asks
// every primary whether it is fit to keep locks, and starts the heartbeat.
//
// It refuses a client that reads from replicas or ignores the deadlines of contexts, and
// a server that evicts keys. If a server begins to evict keys later, the locker notices
// within seconds and takes no lock until the server stops. The error wraps
// idem.ErrUnavailable if a server cannot be reached.
func New(ctx context.Context, client goredis.UniversalClient, opts ...Option) (*Locker, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if err := redisserver.CheckClient(client); err != nil {
		return nil, fmt.Errorf("lock/redis: %w", err)
	}
	err = redisserver.EachPrimary(ctx, client, func(ctx context.Context, node *goredis.Client) error {
		if err := node.Ping(ctx).Err(); err != nil {
			return err
		}
		_, err := redisserver.CheckEviction(ctx, node)
		return err
	})
	if _, evicts := errors.AsType[*redisserver.EvictionError](err); evicts {
		return nil, fmt.Errorf("lock/redis: %w", err)
	}
	if err != nil {
		return nil, unavailable("ping", err)
	}
	l := &Locker{
		keeper: newKeeper(client, cfg), ttl: cfg.ttl, log: cfg.log, now: cfg.now,
		evicts: redisserver.NewEviction(client, cfg.log, cfg.evictionEvery),
		ended:  make(chan struct{}), held: make(map[*lease]struct{}),
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.waits.watches = make(map[idem.KeyID]*watch)
	l.wg.Go(l.beat)
	return l, nil
}

// Visibility returns [idem.VisibilityShared]: other processes see the locks.
func (l *Locker) Visibility() idem.Visibility { return idem.VisibilityShared }

// TryAcquire implements [idem.Locker], in one round trip. Its errors wrap idem.ErrLocked
// or idem.ErrUnavailable. A context that has ended counts as the latter. TryAcquire
// returns at the deadline of ctx. If ctx is cancelled, it returns when Redis answers or
// the client's own time-out is over.
func (l *Locker) TryAcquire(ctx context.Context, req idem.LockRequest) (idem.Lease, error) {
	if err := l.askable(ctx, req.KeyID); err != nil {
		return nil, unavailable("acquire", err)
	}
	owner, sent := idem.NewNonce().String(), l.now()
	call, cancel := context.WithTimeout(ctx, trustOf(l.ttl)) // a later answer would be useless
	defer cancel()
	fence, taken, err := l.keeper.acquire(call, req, owner)
	switch {
	case err == nil && !taken:
		return nil, fmt.Errorf("lock/redis: acquire: %w", idem.ErrLocked)
	case err == nil:
		le := newLease(l, req.KeyID, owner, fence, sent)
		if err = l.grant(le); err == nil {
			return le, nil
		}
	}
	// Redis may have applied the request, or may apply it yet.
	l.removeLater(req.KeyID, owner, true, func(error) {})
	return nil, unavailable("acquire", err)
}

// askable returns nil if Redis may be asked about a lock.
func (l *Locker) askable(ctx context.Context, id idem.KeyID) error {
	l.mu.Lock()
	closing := l.closing
	l.mu.Unlock()
	switch {
	case closing:
		return errClosed
	case !l.keeper.health.admit(redisserver.ShardOf(id)):
		return errNoAnswer
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return l.evicts.Refuse(ctx)
}

// grant puts a lease among those that the heartbeat renews.
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

// Ping implements [idem.Locker]. It writes, because a server that answers may refuse to
// take locks: a replica, a server without memory, or one without its own replicas. In a
// cluster it writes to every shard.
func (l *Locker) Ping(ctx context.Context) error {
	l.mu.Lock()
	closing := l.closing
	l.mu.Unlock()
	err := errClosed
	if !closing {
		err = l.evicts.Refuse(ctx)
	}
	if err == nil {
		err = l.keeper.ping(ctx)
	}
	if err != nil {
		return unavailable("ping", err)
	}
	return nil
}

// Close gives back all locks that are still held. It waits until Redis has acknowledged
// these releases and those in the background. If ctx ends first, Close returns an error
// once the requests under way have ended, which takes two seconds at most. The remaining
// locks then last for their time to live. Close leaves the client open.
//
// Do not call it while handlers hold locks. A process that must end with running handlers
// calls Abandon, or nothing. Its locks then outlive it by their time to live, and that
// protects their keys.
func (l *Locker) Close(ctx context.Context) error {
	return l.end(func(left []*lease) error {
		for _, le := range left {
			le.lose(errClosed.Error())
			le.ReleaseInBackground()
		}
		select {
		case <-l.background.Idle():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("lock/redis: close: some locks are left to time out: %w", context.Cause(ctx))
		}
	})
}

// Abandon stops all goroutines and gives no lock back. All leases of this process are
// lost. In Redis the locks stay for their time to live.
func (l *Locker) Abandon() {
	_ = l.end(func(left []*lease) error {
		for _, le := range left {
			le.lose("locker is abandoned")
		}
		return nil
	})
}

// end stops the locker, once.
func (l *Locker) end(finish func([]*lease) error) error {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		<-l.ended
		return nil
	}
	defer close(l.ended)
	l.closing = true
	left := slices.Collect(maps.Keys(l.held))
	l.mu.Unlock()
	err := finish(left)
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.stop()
	l.wg.Wait()
	return err
}

// spawn runs fn on a goroutine, unless the locker has stopped.
func (l *Locker) spawn(fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	l.wg.Go(fn)
	return true
}
