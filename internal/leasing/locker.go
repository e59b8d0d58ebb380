package leasing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/background"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// Config is for [New].
type Config struct {
	Name    string // of the package, in front of errors
	Service Service
	TTL     time.Duration
	Now     leaseclock.Source
	Log     *slog.Logger

	LookTimeout time.Duration // bounds one look of a waiting caller
}

// Locker has an exclusive lock for each key ID. It is safe for concurrent use. Make it with [New], and end it with
// [Locker.Close] or [Locker.Abandon].
type Locker struct {
	terms
	name        string
	released    error // the end of a released lease
	service     Service
	log         *slog.Logger
	lookTimeout time.Duration
	workers     workers
	background  background.Tracker // releases that the server has not acknowledged yet
	ending      sync.Once          // Close or Abandon

	mu      sync.Mutex
	held    map[*Lease]struct{}
	looks   map[driver.KeyID]*look // under way
	closing bool                   // no new locks
}

// New returns a locker, and starts its heartbeat.
func New(c Config) *Locker {
	working, stop := context.WithCancel(context.Background())
	l := &Locker{terms: terms{c.TTL, c.Now}, name: c.Name, released: fmt.Errorf("%s: %w: it was released", c.Name, driver.ErrLeaseLost),
		service: c.Service, log: c.Log, lookTimeout: c.LookTimeout,
		workers: workers{ctx: working, stop: stop}, held: make(map[*Lease]struct{}), looks: make(map[driver.KeyID]*look)}
	l.workers.spawn(l.beat)
	return l
}

// Spawn runs work on a goroutine until the locker ends, which cancels its context and waits for it. It
// returns false after the end.
func (l *Locker) Spawn(work func(context.Context)) bool {
	return l.workers.spawn(func() { work(l.workers.ctx) })
}

// Unavailable wraps a failed exchange with the server.
func (l *Locker) Unavailable(method string, err error) error {
	return fmt.Errorf("%s: %s: %w: %w", l.name, method, driver.ErrUnavailable, err)
}

// TryAcquire is that of [driver.Locker]. Its errors wrap driver.ErrLocked
// or driver.ErrUnavailable. A context that has ended counts as the latter.
func (l *Locker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	o, err := l.Offer(ctx, req)
	if err != nil {
		return nil, err
	}
	le, err := o.take(ctx)
	if err == nil {
		return le, nil
	}
	if errors.Is(err, driver.ErrUnavailable) { // the server may have applied the request, or may apply it yet
		l.newRemoval(o.lock, false, func(error) {}).start()
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

// Open returns an error after Close or Abandon.
func (l *Locker) Open() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return ErrClosed
	}
	return nil
}

// askable returns nil if the server may be asked about a lock.
func (l *Locker) askable(ctx context.Context, id driver.KeyID) error {
	if err := l.Open(); err != nil {
		return err
	}
	return l.service.Admit(ctx, id)
}

// grant starts a lease, and puts it among the leases for the heartbeat to renew.
func (l *Locker) grant(le *Lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	le.mu.Lock()
	defer le.mu.Unlock()
	left := l.trustSince(le.renewed)
	switch {
	case l.closing:
		return ErrClosed
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
func (l *Locker) drop(le *Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, le)
}

// Pauses between two looks of a waiting caller at a lock.
const (
	FirstLook = 5 * time.Millisecond
	MostLook  = 250 * time.Millisecond
)

// Wait is that of [driver.Locker]. The server does not call back, so Wait looks at the lock again
// and again. The pause between two looks grows. It is shorter if the lock expires earlier.
func (l *Locker) Wait(ctx context.Context, id driver.KeyID) error {
	for pause := FirstLook; ctx.Err() == nil; pause = min(2*pause, MostLook) {
		left, err := l.look(ctx, id)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			return l.Unavailable("wait", err)
		case left == 0:
			return nil
		default:
			sleep(ctx, min(left, jitter(pause)))
		}
	}
	return ctx.Err()
}

// look is a look at a lock, which the waiters of the key share that come meanwhile.
type look struct {
	done chan struct{}
	left time.Duration
	err  error
}

// look returns how long a lock exists unless it is renewed, or as soon as ctx ends.
func (l *Locker) look(ctx context.Context, id driver.KeyID) (left time.Duration, err error) {
	l.mu.Lock()
	k := l.looks[id]
	first := k == nil
	if first {
		k = &look{done: make(chan struct{})}
		l.looks[id] = k
	}
	l.mu.Unlock()
	run := func() {
		defer close(k.done)
		k.left, k.err = l.remaining(l.workers.ctx, id)
		if k.err != nil && l.workers.ctx.Err() != nil {
			k.err = ErrClosed // and no cancelled context, which would look like the waiter's
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.looks, id)
	}
	if first && !l.workers.spawn(run) {
		run() // fails at once
	}
	select {
	case <-k.done:
		return k.left, k.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// remaining is how long a lock exists unless it is renewed. It is 0 if there is no lock.
func (l *Locker) remaining(ctx context.Context, id driver.KeyID) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, l.lookTimeout)
	defer cancel()
	if err := l.askable(ctx, id); err != nil {
		return 0, err
	}
	return l.service.Remaining(ctx, id)
}

// Close gives back all locks that are still held. It waits until the server has acknowledged
// these releases and those in the background. If ctx ends first, Close returns an error
// once the requests under way have ended. The remaining locks then last for their time to live.
func (l *Locker) Close(ctx context.Context) error {
	return l.end(func(left []*Lease) error {
		for _, le := range left {
			le.lose(ErrClosed.Error())
			le.ReleaseInBackground()
		}
		select {
		case <-l.background.Idle():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%s: close: some locks are left to time out: %w", l.name, context.Cause(ctx))
		}
	})
}

// Abandon stops all goroutines and gives no lock back. All leases of this process are
// lost. On the server the locks stay for their time to live.
func (l *Locker) Abandon() {
	_ = l.end(func(left []*Lease) error {
		for _, le := range left {
			le.lose("locker is abandoned")
		}
		return nil
	})
}

// end stops the locker, once.
func (l *Locker) end(finish func([]*Lease) error) (err error) {
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

// jitter is d give or take a half. It keeps callers from trying again together after they
// have failed together.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d) //nolint:gosec // spreads retries, no secret
}

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
