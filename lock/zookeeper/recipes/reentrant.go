package recipes

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
)

// ReentrantMutex is a [Mutex] that one owner can take several times. It is free when the
// owner has released each hold. For the servers and all other owners it is one lease of the
// Mutex at that path.
//
// Go has no thread identity, so the caller names the owner with any comparable value, such
// as a request's ID. A caller that knows the value has the lock. A well-known value, or one
// that two requests share, protects nothing.
//
// Only this object knows the owner, as with Apache Curator's InterProcessMutex. Two
// ReentrantMutexes of one path exclude each other, even in one process and for equal owners.
// A ReentrantMutex is safe for concurrent use.
type ReentrantMutex struct {
	m *Mutex

	// mu is taken while a lease's and a session's locks are held. So no method of either
	// is called while mu is held.
	mu      sync.Mutex
	tenures map[any]*tenure
}

// tenure is an owner's time with the lock, from the call that waits for the lease to the end
// of the lease.
type tenure struct {
	ready chan struct{} // closed when that call is over
	lease *Lease        // nil until then, and guarded by ReentrantMutex.mu like the rest
	holds map[*Hold]struct{}
	over  bool // the lease has ended
	err   error
}

// NewReentrantMutex returns a reentrant mutex on an absolute path below the chroot. The
// listeners among its options are told of leases, not of holds. The error is that of [NewMutex].
func NewReentrantMutex(in zookeeper.Space, path string, opts ...Option) (*ReentrantMutex, error) {
	m, err := NewMutex(in, path, opts...)
	if err != nil {
		return nil, err
	}
	return &ReentrantMutex{m: m, tenures: make(map[any]*tenure)}, nil
}

// MustNewReentrantMutex is [NewReentrantMutex] for known-good wiring. It panics where
// NewReentrantMutex returns an error.
func MustNewReentrantMutex(in zookeeper.Space, path string, opts ...Option) *ReentrantMutex {
	return held.Must(NewReentrantMutex(in, path, opts...))
}

// Acquire returns a hold on the lock. It returns at once if owner has the lock, even while
// the connection is suspended. Otherwise it waits for this owner's turn. Of several callers
// for one owner only one has a place in line. If it gives up, another one takes a new place.
//
// If the lease is lost, all its holds are over. The next Acquire of that owner takes a new
// place at the end of the line.
//
// The errors are those of [Mutex.Acquire]. An owner that is nil, empty or not comparable is
// refused as well.
func (r *ReentrantMutex) Acquire(ctx context.Context, owner any) (*Hold, error) {
	return r.acquire(ctx, owner, r.m.Acquire, true)
}

// TryAcquire returns a hold if owner has the lock or the lock is free. Otherwise, and while
// another call for the same owner is under way, the error wraps driver.ErrLocked.
func (r *ReentrantMutex) TryAcquire(ctx context.Context, owner any) (*Hold, error) {
	return r.acquire(ctx, owner, r.m.TryAcquire, false)
}

// Revoke is [Mutex.Revoke]. It asks all holds of the lease, see [Hold.Revoked].
func (r *ReentrantMutex) Revoke(ctx context.Context) error { return r.m.Revoke(ctx) }

// Participants is [Mutex.Participants].
func (r *ReentrantMutex) Participants(ctx context.Context) ([]Participant, error) {
	return r.m.Participants(ctx)
}

func (r *ReentrantMutex) acquire(ctx context.Context, owner any, get func(context.Context) (*Lease, error), wait bool) (*Hold, error) {
	if err := checkOwner(owner); err != nil {
		return nil, err
	}
	for {
		r.mu.Lock()
		t := r.tenures[owner]
		switch {
		case t == nil:
			t = &tenure{ready: make(chan struct{}), holds: make(map[*Hold]struct{})}
			r.tenures[owner] = t
			r.mu.Unlock()
			return r.begin(ctx, owner, t, get)
		case t.lease != nil:
			defer r.mu.Unlock()
			return r.hold(owner, t), nil
		}
		r.mu.Unlock()
		if !wait {
			return nil, fmt.Errorf("%w: %s: another call for the same owner is under way", driver.ErrLocked, r.m.ln.name)
		}
		select {
		case <-t.ready:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: %s: %w", driver.ErrLocked, r.m.ln.name, context.Cause(ctx))
		}
	}
}

// begin takes the lease for an owner without one.
func (r *ReentrantMutex) begin(ctx context.Context, owner any, t *tenure, get func(context.Context) (*Lease, error)) (*Hold, error) {
	defer close(t.ready)
	lease, err := get(ctx)
	if err == nil {
		lease.held.OnEnd(func(err error) { r.end(owner, t, err) })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		delete(r.tenures, owner)
		return nil, err
	}
	t.lease = lease
	return r.hold(owner, t), nil
}

// hold adds a hold. If the lease has ended, the hold is over from the start. Needs mu.
func (r *ReentrantMutex) hold(owner any, t *tenure) *Hold {
	h := &Hold{r: r, owner: owner, t: t, done: make(chan struct{})}
	if t.over {
		h.finish(t.err)
	} else {
		t.holds[h] = struct{}{}
	}
	return h
}

// end is called when the lease of a tenure has ended.
func (r *ReentrantMutex) end(owner any, t *tenure, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.over, t.err = true, err
	for h := range t.holds {
		h.finish(err)
	}
	clear(t.holds)
	r.forget(owner, t)
}

// forget makes the next acquire of an owner take a new place. Needs mu.
func (r *ReentrantMutex) forget(owner any, t *tenure) {
	if r.tenures[owner] == t {
		delete(r.tenures, owner)
	}
}

// checkOwner refuses values that cannot be told from other owners.
func checkOwner(owner any) error {
	switch {
	case owner == nil || owner == "":
		return errors.New("zookeeper: the owner of a reentrant lock must not be empty")
	case !reflect.ValueOf(owner).Comparable():
		return fmt.Errorf("zookeeper: the owner of a reentrant lock must be comparable, %T is not", owner)
	}
	if same := owner; same != owner { // not a number
		return fmt.Errorf("zookeeper: the owner of a reentrant lock must equal itself, %v does not", owner)
	}
	return nil
}

// Hold is one of an owner's holds on a [ReentrantMutex]. It is safe for concurrent use.
type Hold struct {
	r     *ReentrantMutex
	owner any
	t     *tenure
	done  chan struct{}

	finished bool // guarded by ReentrantMutex.mu, like the rest
	last     bool // this hold gave the lock back
	err      error
}

var _ driver.Lease = (*Hold)(nil)

// Fence implements [driver.Lease]. All holds of one lease have the same fence.
func (h *Hold) Fence() driver.Fence { return h.t.lease.Fence() }

// Done implements [driver.Lease]. It is closed when this hold was released or the lock lost.
func (h *Hold) Done() <-chan struct{} { return h.done }

// Err implements [driver.Lease], see [Lease.Err].
func (h *Hold) Err() error {
	_ = h.t.lease.Err() // ends the holds if the lease is lost
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	return h.err
}

// Count is the number of holds that the owner has on the lock. It is 0 after the lock was
// released or lost.
func (h *Hold) Count() int {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	return len(h.t.holds)
}

// Revoked is that of the lease, see [Lease.Revoked].
func (h *Hold) Revoked() <-chan struct{} { return h.t.lease.Revoked() }

// Check implements [driver.Lease]. A released hold is over, even while the owner has others.
func (h *Hold) Check(ctx context.Context) (time.Duration, error) {
	left, err := h.t.lease.Check(ctx)
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	switch {
	case h.err != nil:
		return 0, h.err
	case h.finished:
		return 0, fmt.Errorf("%w: it was released", driver.ErrLeaseLost)
	}
	return left, err
}

// Release implements [driver.Lease]. It gives up this hold. With the owner's last hold it
// gives up the lock and waits for that. Releasing a hold twice counts once.
func (h *Hold) Release(ctx context.Context) error {
	if !h.giveUp() {
		return nil
	}
	return h.t.lease.Release(ctx)
}

// ReleaseInBackground implements [driver.Lease].
func (h *Hold) ReleaseInBackground() {
	if h.giveUp() {
		h.t.lease.ReleaseInBackground()
	}
}

// giveUp ends a hold. It returns true if the lock is to be released too, or has ended. A
// second call returns the same, so a second Release waits for the same.
func (h *Hold) giveUp() bool {
	r, t := h.r, h.t
	r.mu.Lock()
	defer r.mu.Unlock()
	h.finish(nil)
	if _, counted := t.holds[h]; counted {
		delete(t.holds, h)
		if h.last = len(t.holds) == 0; h.last {
			r.forget(h.owner, t)
		}
	}
	return h.last || t.over
}

// finish ends the hold for its owner, once. Needs ReentrantMutex.mu.
func (h *Hold) finish(err error) {
	if !h.finished {
		h.finished, h.err = true, err
		close(h.done)
	}
}
