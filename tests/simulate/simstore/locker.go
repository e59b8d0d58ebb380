package simstore

import (
	"context"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
)

// Locker has the locks of the server as one process sees them. Its leases are those of lock/redis. It is safe for
// concurrent use.
type Locker struct {
	*leasing.Locker
	c   *Client
	ttl time.Duration
}

var (
	_ driver.OfferingLocker = (*Locker)(nil)
	_ driver.LockOffer      = (*offer)(nil)
	_ driver.OfferedLease   = (*Lease)(nil)
	_ leasing.Service       = service{}
)

// Locker returns a locker whose locks live so long. End it with Close or Abandon.
func (c *Client) Locker(ttl time.Duration) *Locker {
	now := func() leaseclock.Instant { return leaseclock.Instant{}.Add(c.now()) }
	return &Locker{leasing.New(leasing.Config{Name: "simstore", Service: service{c, ttl}, TTL: ttl, Now: now,
		Log: slog.New(slog.DiscardHandler), LookTimeout: 2 * time.Second}), c, ttl}
}

// LockSpace implements driver.OfferingLocker.
func (l *Locker) LockSpace() any { return l.c.s }

// Visibility implements driver.Locker.
func (l *Locker) Visibility() driver.Visibility { return driver.VisibilityShared }

// Ping implements driver.Locker.
func (l *Locker) Ping(ctx context.Context) error { return l.c.Ping(ctx) }

// TryAcquire implements driver.Locker. The lease is a *Lease.
func (l *Locker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	asked := time.Now()
	lease, err := l.Locker.TryAcquire(ctx, req)
	if err != nil {
		return nil, err
	}
	return &Lease{Lease: lease.(*leasing.Lease), Asked: asked}, nil
}

// Offer implements driver.OfferingLocker. The leases are of type *Lease.
func (l *Locker) Offer(ctx context.Context, req driver.LockRequest) (driver.LockOffer, error) {
	asked := time.Now()
	o, err := l.Locker.Offer(ctx, req)
	if err != nil {
		return nil, err
	}
	return &offer{o, asked, offered(o.Lock(), l.ttl)}, nil
}

// offered is a lock as the server takes it.
func offered(lock leasing.Lock, ttl time.Duration) driver.OfferedLock {
	return driver.OfferedLock{Owner: lock.Owner.String(), Nonce: lock.Nonce, Note: "sim", TTL: ttl}
}

// offer is a lock that is not taken yet.
type offer struct {
	of    *leasing.Offer
	asked time.Time
	lock  driver.OfferedLock
}

// Lock implements driver.LockOffer.
func (o *offer) Lock() driver.OfferedLock { return o.lock }

// NotTaken implements driver.LockOffer.
func (o *offer) NotTaken(error) {}

// Taken implements driver.LockOffer.
func (o *offer) Taken(f driver.Fence) (driver.OfferedLease, error) { return o.lease(o.of.Taken(f)) }

// Retake implements driver.LockOffer.
func (o *offer) Retake(ctx context.Context) (driver.OfferedLease, error) {
	o.asked = time.Now()
	return o.lease(o.of.Retake(ctx))
}

func (o *offer) lease(le *leasing.Lease, err error) (driver.OfferedLease, error) {
	if err != nil {
		return nil, err
	}
	return &Lease{le, o.lock, o.asked}, nil
}

// Lease is a lock that is held.
type Lease struct {
	*leasing.Lease
	lock  driver.OfferedLock // of an offer
	Asked time.Time          // when its lock was asked for, by the true time
}

// Lock implements driver.OfferedLease.
func (le *Lease) Lock() driver.OfferedLock { return le.lock }

// service sends requests about locks to the server.
type service struct {
	c   *Client
	ttl time.Duration
}

func (service) Admit(ctx context.Context, _ driver.KeyID) error { return ctx.Err() }

func (s service) Acquire(ctx context.Context, lock leasing.Lock) (driver.Fence, bool, error) {
	type answer struct {
		fence driver.Fence
		ours  bool
	}
	got, err := exchange(ctx, s.c, func() (a answer, err error) {
		if s.c.s.refuses(lock.ID) {
			return a, errFull
		}
		return changeLock(s.c, lock.ID, func(st *state) (answer, bool) {
			fence, _, ours, changed := st.acquire(lock.ID, offered(lock, s.ttl))
			return answer{fence, ours}, changed
		})
	})
	return got.fence, got.ours, err
}

// Extend renews locks in one call, as a pipeline does.
func (s service) Extend(ctx context.Context, locks []leasing.Lock) []error {
	answers, err := exchange(ctx, s.c, func() ([]error, error) {
		answers := make([]error, len(locks))
		for i, lock := range locks {
			ours, err := changeLock(s.c, lock.ID, owned(func(st *state) bool { return st.extend(lock.ID, lock.Owner.String()) }))
			if answers[i] = err; err == nil && !ours {
				answers[i] = leasing.ErrGone
			}
		}
		return answers, nil
	})
	if err != nil {
		answers = make([]error, len(locks))
		for i := range answers {
			answers[i] = err
		}
	}
	return answers
}

func (s service) Remove(ctx context.Context, lock leasing.Lock, _ bool) (bool, error) {
	return exchange(ctx, s.c, func() (bool, error) {
		return changeLock(s.c, lock.ID, owned(func(st *state) bool { return st.remove(lock.ID, lock.Owner.String()) }))
	})
}

func (s service) Remaining(ctx context.Context, id driver.KeyID) (time.Duration, error) {
	return read(ctx, s.c, func(st *state) (time.Duration, error) {
		k, held := st.held(id)
		if !held {
			return 0, nil
		}
		return k.end.Sub(st.now), nil
	})
}

// owned is a change whose answer is whether it was made.
func owned(change func(*state) bool) func(*state) (bool, bool) {
	return func(st *state) (bool, bool) { did := change(st); return did, did }
}

// changeLock changes a lock alone. change has an answer, and reports whether it did.
func changeLock[T any](c *Client, id driver.KeyID, change func(*state) (T, bool)) (answer T, err error) {
	first := true
	err = c.s.changeLock(id, func(st *state) bool {
		a, did := change(st)
		if first { // a later call is for a rebuilt state
			first, answer = false, a
		}
		return did
	})
	return answer, err
}

// refuses reports whether the server takes no writes about a key.
func (s *Server) refuses(id driver.KeyID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.full != nil && s.full(id)
}
