package zookeeper

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
)

// rig is a client behind a proxy, another one beside it, and somebody who looks
// behind both their backs.
type rig struct {
	testing.TB
	proxy *testserver.Proxy
	cfg   Config
	c     *Client // through the proxy
	l     *Locker // of c
	other *Locker // straight to the server
	raw   *zk.Conn
	id    driver.KeyID
	path  string

	ahead *atomic.Int64 // of the lease clock of c, in ns
}

// age makes the leases of c old, so that the client reads a lock before it deletes it.
func (r *rig) age() { r.ahead.Add(int64(2 * time.Second)) }

// adjustable returns the configuration with a lease clock that can be put ahead, by ns.
func adjustable(cfg Config) (Config, *atomic.Int64) {
	began, ahead := time.Now(), new(atomic.Int64)
	return cfg.WithClock(func() time.Duration { return time.Since(began) + time.Duration(ahead.Load()) }), ahead
}

// newRig has sessions that no test outlasts, unless timeout is given.
func newRig(t testing.TB, timeout time.Duration) *rig {
	t.Helper()
	server := testserver.SharedZooKeeper(t)
	r := &rig{TB: t, proxy: testserver.StartZooKeeperProxy(t, server[0]), raw: rawConn(t, server), id: newID()}
	cfg := config(t, server...)
	cfg.SessionTimeout = timeout
	if timeout == 0 {
		cfg.SessionTimeout = 60 * time.Second
	}
	r.cfg, r.ahead = adjustable(cfg)
	r.cfg.Servers = []string{r.proxy.Addr()}
	cfg.SessionTimeout = 60 * time.Second
	r.other = open(t, cfg).Locker()
	r.c = open(t, r.cfg)
	r.cfg = r.c.cfg // with its defaults
	r.path = r.cfg.lockPath(r.id)
	r.l = r.c.Locker()
	// So that no test is disturbed by the making of parents.
	r.release(r.take(r.l))
	return r
}

// onLock matches the writes that name the rig's lock.
func (r *rig) onLock() testserver.Match {
	return testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.path))
}

func (r *rig) take(l *Locker) *Lease {
	r.Helper()
	lease, err := l.TryAcquire(bounded(r), request(r.id))
	if err != nil {
		r.Fatalf("TryAcquire() = %v, want a lease", err)
	}
	return lease.(*Lease)
}

// takeSoon takes a lock that has to become free, whatever else goes wrong
// meanwhile.
func (r *rig) takeSoon(l *Locker) *Lease {
	r.Helper()
	var lease driver.Lease
	until(r, "lock taken", func() (ok bool) {
		var err error
		lease, err = l.TryAcquire(bounded(r), request(r.id))
		return err == nil
	})
	return lease.(*Lease)
}

func (r *rig) release(l *Lease) {
	r.Helper()
	if err := l.Release(bounded(r)); err != nil {
		r.Fatalf("Release() = %v", err)
	}
}

// wantHeld says that a lease is good and is the znode that is there.
func (r *rig) wantHeld(l *Lease) {
	r.Helper()
	if _, err := l.Check(bounded(r)); err != nil {
		r.Errorf("Check() = %v, want a held lease", err)
	}
	data, stat, err := r.raw.Get(znodeOf(l))
	if err != nil {
		r.Errorf("lock on the server: %v", err)
		return
	}
	token := uint64(stat.Czxid)
	// MarkBegun moves a lock to another znode and leaves its fence.
	if _, czxid := l.held.Where(); czxid != stat.Czxid || l.Fence().Token > token || l.marker.there == nil && l.Fence().Token != token {
		r.Errorf("lock on the server: %s, %+v; want it to be that of fence %v", data, stat, l.Fence())
	}
}

func (r *rig) exists() bool {
	r.Helper()
	ok, _, err := r.raw.Exists(r.path)
	if err != nil {
		r.Fatalf("Exists() = %v", err)
	}
	return ok
}

// idle waits until a client has nothing left to settle.
func (r *rig) idle(c *Client) {
	r.Helper()
	await(r, "background work", c.core.Keeper.Background.Idle())
	s := sessionOf(c)
	if s == nil {
		return
	}
	if paths := s.table.Unsettled(); len(paths) > 0 {
		r.Errorf("%q are claimed, and no lease stands for them", paths)
	}
}

// sibling is a key ID whose lock has the same parent as the rig's.
func (r *rig) sibling() driver.KeyID {
	id := newID()
	id[0], id[1] = r.id[0], r.id[1]
	return id
}

func TestLostCreate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		lose   func(*rig) <-chan struct{}
		writes int
	}{
		{"reply lost", func(r *rig) <-chan struct{} { return r.proxy.DropNextReply(r.onLock()) }, 1},
		{"request lost", func(r *rig) <-chan struct{} { return r.proxy.DropNextRequest(r.onLock()) }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			writes := r.proxy.Count(r.path)
			lost := tt.lose(r)
			lease := r.take(r.l)
			await(t, "the loss", lost)
			if n := writes.Seen().Requests[testserver.OpMulti]; n != tt.writes {
				t.Errorf("the lock took %d writes, want %d", n, tt.writes)
			}
			r.wantHeld(lease)
			r.release(lease)
			if r.exists() {
				t.Error("lock is still there after Release()")
			}
			r.idle(r.c)
		})
	}
}

// The caller gives up before the reply could be missed.
func TestAbandonedCreate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		run  func(r *rig, ctx context.Context, cancel context.CancelFunc)
	}{
		{"reply lost", func(r *rig, ctx context.Context, cancel context.CancelFunc) {
			connect := r.proxy.HoldNext(testserver.Op(testserver.OpConnect))
			lost := r.proxy.DropNextReply(r.onLock())
			go func() { <-lost; <-connect.Held(); cancel() }()
			r.wantGivenUp(ctx)
			if !r.exists() {
				r.Error("the create was not applied, the test tests nothing")
			}
			connect.Release()
		}},
		{"reply late", func(r *rig, ctx context.Context, cancel context.CancelFunc) {
			reply := r.proxy.HoldNextReply(r.onLock())
			go func() { <-reply.Held(); cancel() }()
			r.wantGivenUp(ctx)
			soon, stop := context.WithTimeout(bounded(r), 50*time.Millisecond)
			defer stop()
			if l, err := r.l.TryAcquire(soon, request(r.id)); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrLocked) {
				r.Errorf("TryAcquire() while the lock is being given back = %v, %v, want it to wait", l, err)
			}
			reply.Release()
		}},
		{"request late", func(r *rig, ctx context.Context, cancel context.CancelFunc) {
			req := r.proxy.HoldNext(r.onLock())
			go func() { <-req.Held(); cancel() }()
			r.wantGivenUp(ctx)
			req.Release()
		}},
		{"request late and over a dead connection", func(r *rig, ctx context.Context, cancel context.CancelFunc) {
			writes, req := r.proxy.Count(r.path), r.proxy.HoldNext(r.onLock())
			go func() { <-req.Held(); cancel() }()
			r.wantGivenUp(ctx)
			r.proxy.Cut()
			until(r, "connected again", func() bool { _, err := r.c.usable(); return err == nil })
			req.Release()
			r.idle(r.c)
			if n := writes.Seen().Requests[testserver.OpMulti]; n != 1 {
				r.Errorf("%d writes for the lock, want none after the caller has gone", n)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			ctx, cancel := context.WithCancel(bounded(t))
			defer cancel()
			tt.run(r, ctx, cancel)
			next := r.takeSoon(r.other)
			r.idle(r.c)
			r.wantHeld(next)
			r.release(next)
			r.release(r.takeSoon(r.l))
		})
	}
}

// TestAbandonedLockKeepsItsClaim: until the servers have deleted it, no other caller of this process
// may make the znode. Otherwise the delete could hit the lock of that caller.
func TestAbandonedLockKeepsItsClaim(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	reply := r.proxy.HoldNextReply(r.onLock())
	go func() { <-reply.Held(); cancel() }()
	r.wantGivenUp(ctx)
	remove := r.proxy.HoldNext(r.onLock())
	reply.Release()
	<-remove.Held()
	s, err := r.c.usable()
	if err != nil {
		t.Fatal(err)
	}
	if paths := s.table.Unsettled(); len(paths) != 1 {
		t.Errorf("the session claims %q while it deletes the lock, want the lock's path", paths)
	}
	remove.Release()
	r.idle(r.c)
	r.release(r.takeSoon(r.l))
}

// An abandoned lock that is not young is read before it is deleted. An operator may have deleted it
// meanwhile, and another owner may have come.
func TestAbandonedOldLockSparesTheNextOwner(t *testing.T) {
	t.Parallel()
	r, clock := still(t)
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	reply := r.proxy.HoldNextReply(r.onLock())
	go func() { <-reply.Held(); cancel() }()
	r.wantGivenUp(ctx)
	clock.Advance(2 * held.Young)
	r.delete(r.path)
	next := r.take(r.other)
	reply.Release()
	r.idle(r.c)
	r.wantHeld(next)
	r.release(next)
}

func (r *rig) wantGivenUp(ctx context.Context) {
	r.Helper()
	lease, err := r.l.TryAcquire(ctx, request(r.id))
	if !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) || lease != nil {
		r.Errorf("TryAcquire() = %v, %v; want %v and %v", lease, err, driver.ErrUnavailable, context.Canceled)
	}
}

func TestLostDelete(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		lose func(*rig) <-chan struct{}
	}{
		{"reply lost", func(r *rig) <-chan struct{} { return r.proxy.DropNextReply(r.onLock()) }},
		{"request lost", func(r *rig) <-chan struct{} { return r.proxy.DropNextRequest(r.onLock()) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			lease := r.take(r.l)
			lost := tt.lose(r)
			r.release(lease)
			await(t, "the loss", lost)
			if r.exists() {
				t.Error("lock is still there after Release()")
			}
			r.idle(r.c)
			r.release(r.take(r.l))
		})
	}
}

// A delete that is sent again because its reply was lost would remove the lock of the next owner.
func TestLostDeleteSparesTheNextOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.l)
	connect := r.proxy.HoldNext(testserver.Op(testserver.OpConnect))
	lost := r.proxy.DropNextReply(r.onLock())
	lease.ReleaseInBackground()
	await(t, "lost reply", lost)
	await(t, "reconnect", connect.Held())
	next := r.take(r.other)
	connect.Release()
	r.idle(r.c)
	r.wantHeld(next)
	if !lease.Fence().Before(next.Fence()) {
		t.Errorf("fence %v after %v", next.Fence(), lease.Fence())
	}
	if _, err := r.l.TryAcquire(bounded(t), request(r.id)); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() = %v, want %v", err, driver.ErrLocked)
	}
	r.release(next)
}

// Several writes are in flight when the connection breaks, some applied, some
// not: each is settled for itself.
func TestWritesInFlightWhenConnectionBreaks(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]func(r *rig, released *Lease, acquire func(driver.KeyID)) (creates int){
		"a create and a delete, both applied": func(r *rig, released *Lease, _ func(driver.KeyID)) int {
			released.ReleaseInBackground()
			until(r, "delete applied", func() bool { return !r.exists() })
			return 0
		},
		"two creates, one applied": func(r *rig, released *Lease, acquire func(driver.KeyID)) int {
			id := r.sibling()
			request := r.proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.cfg.lockPath(id))))
			go acquire(id)
			await(r, "held request", request.Held())
			r.Cleanup(released.ReleaseInBackground)
			return 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			released, id := r.take(r.l), r.sibling()
			reply := r.proxy.HoldNextReply(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.cfg.lockPath(id))))
			leases := make(chan *Lease, 2)
			acquire := func(id driver.KeyID) {
				lease, err := r.l.TryAcquire(bounded(t), request(id))
				if err != nil {
					t.Errorf("TryAcquire() = %v", err)
					leases <- nil
					return
				}
				leases <- lease.(*Lease)
			}
			go acquire(id)
			await(t, "held reply", reply.Held())
			creates := 1 + second(r, released, acquire)
			r.proxy.Cut()
			for range creates {
				if lease := <-leases; lease != nil {
					r.wantHeld(lease)
					r.release(lease)
				}
			}
			r.idle(r.c)
		})
	}
}

// An old connection's write that arrives late, after the session has settled
// what became of it over a new one, is refused by the server. (It is this that
// makes a barrier final.)
func TestLateWriteIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.l)
	del := r.proxy.HoldNext(r.onLock())
	lease.ReleaseInBackground()
	await(t, "held delete", del.Held())
	r.proxy.Cut()
	r.idle(r.c) // released by a second delete
	next := r.take(r.other)
	del.Release()
	if err := r.l.Ping(bounded(t)); err != nil { // a write later
		t.Errorf("Ping() = %v", err)
	}
	r.wantHeld(next)
}
