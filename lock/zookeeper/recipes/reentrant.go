package recipes

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// ReentrantMutex is a [Mutex] that one owner can take several times: it is free
// when each of its holds has been released. Towards the servers, and all other
// owners, it is one lease of the Mutex at that path.
//
// An owner is what the caller says it is, since Go has no thread identity: any
// comparable value, such as a request's ID. Who knows the value has the lock, so
// a well-known one, or one that two requests share, protects nothing.
//
// Who owns it is known to this object alone, as with Apache Curator's
// InterProcessMutex, in whose place it stands: two ReentrantMutexes of one path
// exclude each other, in one process too, and so do equal owners of the two. It
// is safe for concurrent use.
type ReentrantMutex struct {
	m *Mutex

	// mu is taken with a lease's and a session's locks held, so nothing of
	// either is called under it.
	mu      sync.Mutex
	tenures map[any]*tenure
}

// tenure is an owner's time with the lock, from before its first hold.
type tenure struct {
	ready  chan struct{} // closed when the lock was had, or was not
	trying bool          // the first acquire does not wait
	cancel context.CancelCauseFunc

	// The rest is guarded by ReentrantMutex.mu.
	lease *Lease // nil until the lock is had
	over  bool   // the lease has ended, or there never was one
	err   error  // with this
	left  bool   // nobody waits for it any more
	holds map[*Hold]struct{}
}

// NewReentrantMutex returns a reentrant mutex on an absolute path below the chroot.
// The listeners among its options are told of leases, not of holds.
func NewReentrantMutex(in zookeeper.Root, path string, opts ...MutexOption) *ReentrantMutex {
	return &ReentrantMutex{m: NewMutex(in, path, opts...), tenures: make(map[any]*tenure)}
}

// Acquire returns a hold on the lock: at once where owner has it already, even if
// the connection is suspended, or else when it is this owner's turn. Callers of
// the same owner wait for one place in line together: it is kept as long as one
// of them waits, and what comes of it comes to all of them.
//
// After a lease was lost all its holds are over, and the next Acquire of that
// owner takes a new place at the end of the line.
//
// The errors are those of [Mutex.Acquire]; besides, an owner that is nil, empty
// or not comparable is refused.
func (r *ReentrantMutex) Acquire(ctx context.Context, owner any) (*Hold, error) {
	return r.acquire(ctx, owner, false)
}

// TryAcquire returns a hold if owner has the lock or it is free, and an error
// that wraps idem.ErrLocked if it is not, or if the same owner is just waiting
// for it.
func (r *ReentrantMutex) TryAcquire(ctx context.Context, owner any) (*Hold, error) {
	return r.acquire(ctx, owner, true)
}

// Revoke is [Mutex.Revoke]. The holds of the lease are asked, see
// [Hold.Revoked].
func (r *ReentrantMutex) Revoke(ctx context.Context) error { return r.m.Revoke(ctx) }

// Participants is [Mutex.Participants].
func (r *ReentrantMutex) Participants(ctx context.Context) ([]Participant, error) {
	return r.m.Participants(ctx)
}

func (r *ReentrantMutex) acquire(ctx context.Context, owner any, try bool) (*Hold, error) {
	if err := checkOwner(owner); err != nil {
		return nil, err
	}
	for {
		r.mu.Lock()
		t := r.tenures[owner]
		switch {
		case t == nil:
			t = &tenure{ready: make(chan struct{}), trying: try, holds: make(map[*Hold]struct{})}
			r.tenures[owner] = t
			h := r.hold(owner, t)
			begun, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
			t.cancel = cancel
			r.mu.Unlock()
			if try { // does not wait, so nobody else waits for it for long
				r.begin(ctx, owner, t)
			} else if !r.m.ln.c.Keeper.Go(func() { r.begin(begun, owner, t) }) {
				r.begin(begun, owner, t) // ends at once, the client being closed
			}
			return r.await(ctx, h)
		case t.lease != nil:
			h := r.hold(owner, t)
			r.mu.Unlock()
			return h, nil
		case !try && !t.trying && !t.left:
			h := r.hold(owner, t)
			r.mu.Unlock()
			return r.await(ctx, h)
		}
		r.mu.Unlock()
		if try && !t.trying {
			return nil, fmt.Errorf("%w: %s: the same owner is waiting for it", idem.ErrLocked, r.m.ln.name)
		}
		select {
		case <-t.ready:
		case <-ctx.Done():
			return nil, r.notYet(ctx)
		}
	}
}

func (r *ReentrantMutex) notYet(ctx context.Context) error {
	return fmt.Errorf("%w: %s: %w", idem.ErrLocked, r.m.ln.name, context.Cause(ctx))
}

// begin is an owner's first acquire. It ends with ctx, which is nobody's own
// unless it does not wait.
func (r *ReentrantMutex) begin(ctx context.Context, owner any, t *tenure) {
	defer t.cancel(nil)
	acquire := r.m.Acquire
	if t.trying {
		acquire = r.m.TryAcquire
	}
	lease, err := acquire(ctx)
	defer close(t.ready)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		t.err = err
		delete(r.tenures, owner)
		return
	}
	lease.OnEnd(func(err error) { r.end(owner, t, err) })
	r.mu.Lock()
	defer r.mu.Unlock()
	t.lease = lease
}

// await waits for the lock with a hold of it that counts already. Who does not
// wait any more leaves the place in line to the others; the last one gives it up,
// and is told what became of it.
func (r *ReentrantMutex) await(ctx context.Context, h *Hold) (*Hold, error) {
	t := h.t
	select {
	case <-t.ready:
	case <-ctx.Done():
		if !r.leave(h) {
			return nil, r.notYet(ctx)
		}
		t.cancel(context.Cause(ctx))
		<-t.ready
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.lease == nil {
		return nil, t.err
	}
	return h, nil
}

// leave takes away a hold on a lock that was not had yet. It is true for one that
// stays: the last one, or one on a lock that was had meanwhile.
func (r *ReentrantMutex) leave(h *Hold) (stays bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := h.t
	switch {
	case t.lease != nil:
		return true
	case len(t.holds) == 1:
		t.left = true
		return true
	}
	delete(t.holds, h)
	return false
}

// hold adds a hold. Needs mu.
func (r *ReentrantMutex) hold(owner any, t *tenure) *Hold {
	h := &Hold{r: r, owner: owner, t: t, done: make(chan struct{})}
	if t.over { // lost before it was handed out
		h.finish(t.err)
		return h
	}
	t.holds[h] = struct{}{}
	return h
}

// end is told that the lease of a tenure has ended.
func (r *ReentrantMutex) end(owner any, t *tenure, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.over, t.err = true, err
	for h := range t.holds {
		h.finish(err)
	}
	clear(t.holds)
	if r.tenures[owner] == t {
		delete(r.tenures, owner)
	}
}

// checkOwner refuses what cannot be told from other owners.
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
