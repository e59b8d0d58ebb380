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

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/background"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

var _ driver.Locker = (*Locker)(nil)

var (
	errClosed   = errors.New("locker is closed")
	errNoAnswer = errors.New("no answer from Redis a moment ago")
)

// Locker has an exclusive lock for each key ID. The lock is a key in Redis with a time to
// live. A Locker is safe for concurrent use. Make it with [New], and end it with
// [Locker.Close] or [Locker.Abandon].
type Locker struct {
	terms
	prefix     string
	keeper     *keeper
	log        *slog.Logger
	evicts     *redisserver.Eviction
	workers    workers
	background background.Tracker // releases that Redis has not acknowledged yet
	ending     sync.Once          // Close or Abandon

	mu      sync.Mutex
	held    map[*lease]struct{}
	closing bool // no new locks
}

// New returns a locker on client. The caller closes the client after the locker. New asks
// every primary whether it is fit to keep locks, and starts the heartbeat.
//
// It refuses a client that reads from replicas or ignores the deadlines of contexts, a user who
// may not run the commands of locks, a server that evicts keys, and one with replica-read-only off, which would go on
// taking locks after a fail-over. If a server begins to evict keys later, the locker notices
// within seconds and takes no lock until the server stops. The error wraps
// driver.ErrUnavailable if a server cannot be reached.
func New(ctx context.Context, client goredis.UniversalClient, opts ...Option) (*Locker, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if err := redisserver.CheckClient(client); err != nil {
		return nil, fmt.Errorf("lock/redis: %w", err)
	}
	err = redisserver.Greet(ctx, client, func(ctx context.Context, node *goredis.Client) error {
		_, err := redisserver.CheckEviction(ctx, node)
		return err
	})
	if redisserver.Unfit(err) {
		return nil, fmt.Errorf("lock/redis: %w", err)
	}
	if err != nil {
		return nil, unavailable("ping", err)
	}
	working, stop := context.WithCancel(context.Background())
	l := &Locker{
		workers: workers{ctx: working, stop: stop},
		terms:   terms{cfg.ttl, cfg.now}, prefix: cfg.prefix, keeper: newKeeper(client, cfg), log: cfg.log,
		evicts: redisserver.NewEviction(client, cfg.log, cfg.evictionEvery),
		held:   make(map[*lease]struct{}),
	}
	if err := l.keeper.ping(ctx); redisserver.Answered(err) {
		stop()
		return nil, fmt.Errorf("lock/redis: ping: %w", err) // the user may not run a command, for example
	}
	l.workers.spawn(l.beat)
	return l, nil
}

// Visibility returns [driver.VisibilityShared], because other processes see the locks.
func (l *Locker) Visibility() driver.Visibility { return driver.VisibilityShared }

// TryAcquire implements [driver.Locker], in one round trip. Its errors wrap driver.ErrLocked
// or driver.ErrUnavailable. A context that has ended counts as the latter. TryAcquire
// returns at the deadline of ctx. If ctx is cancelled, it returns when Redis answers or
// the client's own time-out is over.
func (l *Locker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	if err := l.askable(ctx, req.KeyID); err != nil {
		return nil, unavailable("acquire", err)
	}
	o := l.newOffer(req)
	le, err := o.take(ctx)
	switch {
	case err == nil:
		return le, nil
	case !errors.Is(err, driver.ErrLocked):
		o.remove()
	}
	return nil, err
}

// within is context.WithTimeout. It returns ctx itself if that ends soon enough. A timer
// that is not set wakes no processor.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// askable returns nil if Redis may be asked about a lock.
func (l *Locker) askable(ctx context.Context, id driver.KeyID) error {
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

// grant starts a lease, and puts it among the leases for the heartbeat to renew.
func (l *Locker) grant(le *lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	le.mu.Lock()
	defer le.mu.Unlock()
	left := l.trustSince(le.renewed)
	switch {
	case l.closing:
		return errClosed
	case left <= 0:
		return errors.New("the lock came too late")
	}
	if l.due(left) {
		le.arm() // the heartbeat may come too late
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

// Pauses between two looks of a waiting caller at a lock, and the time-out of a look.
const (
	firstLook   = 5 * time.Millisecond
	mostLook    = 250 * time.Millisecond
	lookTimeout = 2 * time.Second
)

// Wait implements [driver.Locker]. Redis does not call back, so Wait looks at the lock again
// and again. The pause between two looks grows from 5 ms to 250 ms. It is shorter if the lock
// expires earlier.
func (l *Locker) Wait(ctx context.Context, id driver.KeyID) error {
	for pause := firstLook; ctx.Err() == nil; pause = min(2*pause, mostLook) {
		left, err := l.look(ctx, id)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			return unavailable("wait", err)
		case left == 0:
			return nil
		default:
			sleep(ctx, min(left, jitter(pause)))
		}
	}
	return ctx.Err()
}

// look is [Locker.remaining], and returns as soon as ctx ends. The client notices a deadline
// by itself, and no cancellation.
func (l *Locker) look(ctx context.Context, id driver.KeyID) (left time.Duration, err error) {
	type answer struct {
		left time.Duration
		err  error
	}
	answers := make(chan answer, 1)
	running := l.workers.spawn(func() {
		left, err := l.remaining(ctx, id)
		answers <- answer{left, err}
	})
	if !running {
		return 0, errClosed
	}
	select {
	case a := <-answers:
		if a.err != nil && expired(ctx) {
			<-ctx.Done() // the client may notice the deadline first
		}
		return a.left, a.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// remaining is how long a lock exists unless it is renewed. It is 0 if there is no lock.
func (l *Locker) remaining(ctx context.Context, id driver.KeyID) (time.Duration, error) {
	if err := l.askable(ctx, id); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return l.keeper.remaining(ctx, id)
}

// Ping implements [driver.Locker]. It writes, because a server may answer but refuse to take
// locks. A replica does so, and so may a server without memory, or without its own replicas, or
// one whose user may not run a command.
// In a cluster Ping writes to every shard.
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
// once the requests under way have ended. This takes two seconds at most. The remaining
// locks then last for their time to live. Close leaves the client open.
//
// Do not call it while handlers hold locks. If a process has to end while handlers run, call
// Abandon, or let the process end without a call. The locks then outlive the process by
// their time to live, and this protects their keys.
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
func (l *Locker) end(finish func([]*lease) error) (err error) {
	l.ending.Do(func() {
		l.mu.Lock()
		l.closing = true
		left := slices.Collect(maps.Keys(l.held))
		l.mu.Unlock()
		err = finish(left)
		l.workers.end()
	})
	return err
}
