package simstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Locker has the locks of the server as one process sees them. It follows the rules of lock/redis: a lease is
// trusted for nine tenths of the time to live from before its lock was asked for, by the lease clock. It is safe for
// concurrent use.
type Locker struct {
	c    *Client
	ttl  time.Duration
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	held    map[*Lease]bool
	closing bool
}

var (
	_ driver.OfferingLocker = (*Locker)(nil)
	_ driver.LockOffer      = (*Offer)(nil)
	_ driver.OfferedLease   = (*Lease)(nil)
)

var (
	errClosed   = fmt.Errorf("simstore: locker is closed: %w", driver.ErrUnavailable)
	errReleased = fmt.Errorf("simstore: released: %w", driver.ErrLeaseLost)
)

// Locker returns a locker whose locks live so long. End it with Close or Abandon.
func (c *Client) Locker(ttl time.Duration) *Locker {
	l := &Locker{c: c, ttl: ttl, held: make(map[*Lease]bool)}
	l.ctx, l.stop = context.WithCancel(context.Background())
	l.wg.Go(l.beat)
	return l
}

func (l *Locker) trust() time.Duration { return l.ttl - l.ttl/10 }

// patience bounds a call in the background.
func (l *Locker) patience() time.Duration { return min(l.ttl/5, 2*time.Second) }

// spawn runs f, unless the locker has ended.
func (l *Locker) spawn(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return false
	}
	l.wg.Go(f)
	return true
}

// beat renews the leases of a third of their time to live.
func (l *Locker) beat() {
	tick := time.NewTicker(l.ttl / 20)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.ctx.Done():
			return
		}
		var wg sync.WaitGroup
		for _, le := range l.leases() {
			if le.over() == nil && le.left() <= l.trust()-l.ttl/3 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(l.ctx, l.patience())
					defer cancel()
					_ = le.renew(ctx)
				})
			}
		}
		wg.Wait()
	}
}

func (l *Locker) leases() []*Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.held))
}

// LockSpace implements driver.OfferingLocker.
func (l *Locker) LockSpace() any { return l.c.s }

// Visibility implements driver.Locker.
func (l *Locker) Visibility() driver.Visibility { return driver.VisibilityShared }

// Ping implements driver.Locker.
func (l *Locker) Ping(ctx context.Context) error { return l.c.Ping(ctx) }

// Offer implements driver.OfferingLocker.
func (l *Locker) Offer(ctx context.Context, req driver.LockRequest) (driver.LockOffer, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("simstore: %w: %w", driver.ErrUnavailable, err)
	}
	return l.offer(req)
}

func (l *Locker) offer(req driver.LockRequest) (*Offer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return nil, errClosed
	}
	return &Offer{l: l, id: req.KeyID, lock: driver.OfferedLock{Owner: driver.NewNonce().String(), Nonce: req.Nonce, Note: "sim", TTL: l.ttl},
		asked: l.c.now(), at: time.Now()}, nil
}

// TryAcquire implements driver.Locker.
func (l *Locker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	o, err := l.offer(req)
	if err != nil {
		return nil, err
	}
	lease, err := o.take(ctx)
	switch {
	case err == nil:
		return lease, nil
	case !errors.Is(err, driver.ErrLocked):
		l.spawn(func() { _ = l.remove(req.KeyID, o.lock.Owner, true) })
	}
	return nil, err
}

// Wait implements driver.Locker.
func (l *Locker) Wait(ctx context.Context, id driver.KeyID) error {
	for pause := 5 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, 250*time.Millisecond) {
		left, err := read(ctx, l.c, func(st *state) (time.Duration, error) {
			k, held := st.held(id)
			if !held {
				return 0, nil
			}
			return k.end.Sub(st.now), nil
		})
		switch {
		case ctx.Err() != nil:
		case err != nil:
			return fmt.Errorf("simstore: %w: %w", driver.ErrUnavailable, err)
		case left <= 0:
			return nil
		default:
			sleep(ctx, min(left, pause))
		}
	}
	return ctx.Err()
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// remove removes an owner's lock, and returns nil when that is acknowledged. With onItsWay it goes on until it finds the lock.
func (l *Locker) remove(id driver.KeyID, owner string, onItsWay bool) (err error) {
	giveUp := time.Now().Add(l.ttl + l.ttl/4)
	for pause := 10 * time.Millisecond; ; pause *= 2 {
		ctx, cancel := context.WithTimeout(l.ctx, l.patience())
		found, failed := l.changeLock(ctx, id, func(st *state) bool { return st.remove(id, owner) })
		cancel()
		if err = failed; err == nil && (found || !onItsWay) {
			return nil
		}
		if err != nil {
			pause = min(pause, 250*time.Millisecond)
		}
		if time.Now().Add(pause).After(giveUp) || !sleep(l.ctx, pause) {
			return err
		}
	}
}

// changeLock is a call that changes a lock alone.
func (l *Locker) changeLock(ctx context.Context, id driver.KeyID, change func(*state) bool) (bool, error) {
	return exchange(ctx, l.c, func() (done bool, err error) {
		first := true
		err = l.c.s.changeLock(id, func(st *state) bool {
			did := change(st)
			if first { // a later call is for a rebuilt state
				first, done = false, did
			}
			return did
		})
		return done, err
	})
}

// Close gives back all locks, and waits until that is acknowledged or ctx ends.
func (l *Locker) Close(ctx context.Context) error {
	var all sync.WaitGroup
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	for _, le := range l.leases() {
		all.Go(func() { _ = le.Release(ctx) })
	}
	all.Wait()
	l.Abandon()
	return ctx.Err()
}

// Abandon ends the locker, and leaves the locks to end by themselves.
func (l *Locker) Abandon() {
	l.mu.Lock()
	l.closing = true
	l.stop()
	l.mu.Unlock()
	for _, le := range l.leases() {
		le.finish(driver.ErrLeaseLost)
	}
	l.wg.Wait()
}

// Offer is a lock that is not taken yet.
type Offer struct {
	l     *Locker
	id    driver.KeyID
	lock  driver.OfferedLock
	asked time.Duration // by the lease clock; trust counts from here
	at    time.Time     // by the true time
}

// Lock implements driver.LockOffer.
func (o *Offer) Lock() driver.OfferedLock { return o.lock }

// NotTaken implements driver.LockOffer.
func (o *Offer) NotTaken(error) {}

// Taken implements driver.LockOffer.
func (o *Offer) Taken(f driver.Fence) (driver.OfferedLease, error) {
	le, err := o.granted(f)
	if err != nil {
		return nil, err
	}
	return le, nil
}

// Retake implements driver.LockOffer.
func (o *Offer) Retake(ctx context.Context) (driver.OfferedLease, error) {
	o.asked, o.at = o.l.c.now(), time.Now()
	le, err := o.take(ctx)
	if err != nil {
		return nil, err
	}
	return le, nil
}

// take asks the server for the lock.
func (o *Offer) take(ctx context.Context) (*Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, o.l.trust())
	defer cancel()
	type answer struct {
		fence driver.Fence
		ours  bool
	}
	got, err := exchange(ctx, o.l.c, func() (a answer, err error) {
		if o.l.c.s.refuses(o.id) {
			return a, errFull
		}
		first := true
		err = o.l.c.s.changeLock(o.id, func(st *state) bool {
			fence, _, ours, changed := st.acquire(o.id, o.lock)
			if first {
				first, a = false, answer{fence, ours}
			}
			return changed
		})
		return a, err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("simstore: %w: %w", driver.ErrUnavailable, err)
	case !got.ours:
		return nil, fmt.Errorf("simstore: %w", driver.ErrLocked)
	}
	return o.granted(got.fence)
}

// granted returns the lease of the lock that the server has given.
func (o *Offer) granted(f driver.Fence) (*Lease, error) {
	le := &Lease{l: o.l, id: o.id, lock: o.lock, fence: f, Asked: o.at, renewed: o.asked, done: make(chan struct{}), gone: make(chan struct{})}
	o.l.mu.Lock()
	defer o.l.mu.Unlock()
	if o.l.closing {
		return nil, errClosed
	}
	if le.left() <= 0 {
		return nil, fmt.Errorf("simstore: the lock came too late: %w", driver.ErrUnavailable)
	}
	o.l.held[le] = true
	return le, nil
}

// refuses reports whether the server takes no writes about a key.
func (s *Server) refuses(id driver.KeyID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.full != nil && s.full(id)
}

// Lease is a lock that is held.
type Lease struct {
	Asked time.Time // when its lock was asked for, by the true time

	l     *Locker
	id    driver.KeyID
	lock  driver.OfferedLock
	fence driver.Fence
	done  chan struct{}

	mu        sync.Mutex
	ended     error
	renewed   time.Duration // right before the last renewal was sent, by the lease clock
	releasing bool
	gone      chan struct{} // closed when the lock is given back, or left
	goneErr   error
}

// Lock implements driver.OfferedLease.
func (le *Lease) Lock() driver.OfferedLock { return le.lock }

// Fence implements driver.Lease.
func (le *Lease) Fence() driver.Fence { return le.fence }

// Done implements driver.Lease.
func (le *Lease) Done() <-chan struct{} { return le.done }

// Err implements driver.Lease.
func (le *Lease) Err() error {
	if err := le.over(); !errors.Is(err, errReleased) {
		return err
	}
	return nil
}

func (le *Lease) left() time.Duration {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.renewed + le.l.trust() - le.l.c.now()
}

// over returns why the lease has ended, or nil.
func (le *Lease) over() error {
	if le.left() <= 0 {
		le.finish(driver.ErrLeaseLost)
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.ended
}

// finish ends the lease.
func (le *Lease) finish(why error) {
	le.mu.Lock()
	if le.ended != nil {
		le.mu.Unlock()
		return
	}
	le.ended = why
	close(le.done)
	le.mu.Unlock()
	le.l.mu.Lock()
	defer le.l.mu.Unlock()
	delete(le.l.held, le)
}

// renew renews the lock.
func (le *Lease) renew(ctx context.Context) error {
	asked := le.l.c.now()
	ours, err := le.l.changeLock(ctx, le.id, func(st *state) bool { return st.extend(le.id, le.lock.Owner) })
	if err != nil {
		return fmt.Errorf("simstore: %w: %w", driver.ErrUnavailable, err)
	}
	if !ours {
		le.finish(driver.ErrLeaseLost)
	}
	if err := le.over(); err != nil {
		return err
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	le.renewed = max(le.renewed, asked)
	return nil
}

// Check implements driver.Lease.
func (le *Lease) Check(ctx context.Context) (time.Duration, error) {
	if err := le.over(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, le.left())
	defer cancel()
	err := le.renew(ctx)
	left := le.left()
	if ended := le.over(); ended != nil {
		return 0, ended
	}
	return left, err
}

// Release implements driver.Lease.
func (le *Lease) Release(ctx context.Context) error {
	le.ReleaseInBackground()
	select {
	case <-le.gone:
		return le.goneErr
	case <-ctx.Done():
		return fmt.Errorf("simstore: %w: %w", driver.ErrUnavailable, ctx.Err())
	}
}

// ReleaseInBackground implements driver.Lease.
func (le *Lease) ReleaseInBackground() {
	le.finish(errReleased)
	if !le.releases() {
		return
	}
	remove := func() {
		defer close(le.gone)
		if err := le.l.remove(le.id, le.lock.Owner, false); err != nil {
			le.goneErr = fmt.Errorf("simstore: %w: %w", driver.ErrUnavailable, err)
		}
	}
	if !le.l.spawn(remove) {
		le.goneErr = errClosed
		close(le.gone)
	}
}

// Returned implements driver.OfferedLease.
func (le *Lease) Returned() {
	le.finish(errReleased)
	if le.releases() {
		close(le.gone)
	}
}

// releases is true for the first caller.
func (le *Lease) releases() bool {
	le.mu.Lock()
	defer le.mu.Unlock()
	first := !le.releasing
	le.releasing = true
	return first
}
