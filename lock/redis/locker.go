package redislock

import (
	"context"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

var _ driver.Locker = (*Locker)(nil)

// Locker has an exclusive lock for each key ID. The lock is a key in Redis with a time to
// live. A Locker is safe for concurrent use. Make it with [New], and end it with
// [Locker.Close] or [Locker.Abandon].
type Locker struct {
	leases *leasing.Locker
	keeper *keeper
	prefix string
}

// lookTimeout bounds a look of a waiting caller. The client notices a deadline, and no cancellation.
const lookTimeout = 2 * time.Second

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
	k := newKeeper(client, cfg)
	if err := k.ping(ctx); redisserver.Answered(err) {
		return nil, fmt.Errorf("lock/redis: ping: %w", err) // the user may not run a command, for example
	}
	return &Locker{keeper: k, prefix: cfg.prefix, leases: leasing.New(leasing.Config{Name: "lock/redis", Service: k, TTL: cfg.ttl,
		Now: cfg.now, Log: cfg.log, LookTimeout: lookTimeout})}, nil
}

// unavailable wraps a failed exchange with a server.
func unavailable(method string, err error) error {
	return fmt.Errorf("lock/redis: %s: %w: %w", method, driver.ErrUnavailable, err)
}

// Visibility returns [driver.VisibilityShared], because other processes see the locks.
func (l *Locker) Visibility() driver.Visibility { return driver.VisibilityShared }

// TryAcquire implements [driver.Locker], in one round trip. Its errors wrap driver.ErrLocked
// or driver.ErrUnavailable. A context that has ended counts as the latter. TryAcquire
// returns at the deadline of ctx. If ctx is cancelled, it returns when Redis answers or
// the client's own time-out is over.
func (l *Locker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	return l.leases.TryAcquire(ctx, req)
}

// Wait implements [driver.Locker]. Redis does not call back, so Wait looks at the lock again
// and again. The pause between two looks grows from 5 ms to 250 ms. It is shorter if the lock
// expires earlier.
func (l *Locker) Wait(ctx context.Context, id driver.KeyID) error { return l.leases.Wait(ctx, id) }

// Ping implements [driver.Locker]. It writes, because a server may answer but refuse to take
// locks. A replica does so, and so may a server without memory, or without its own replicas, or
// one whose user may not run a command.
// In a cluster Ping writes to every shard.
func (l *Locker) Ping(ctx context.Context) error {
	err := l.leases.Open()
	if err == nil {
		err = l.keeper.evicts.Refuse(ctx)
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
func (l *Locker) Close(ctx context.Context) error { return l.leases.Close(ctx) }

// Abandon stops all goroutines and gives no lock back. All leases of this process are
// lost. In Redis the locks stay for their time to live.
func (l *Locker) Abandon() { l.leases.Abandon() }
