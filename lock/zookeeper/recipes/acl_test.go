package recipes

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
)

// holdEverything has a client hold one of each thing that it can make.
func holdEverything(t testing.TB, c *zookeeper.Client) []driver.Lease {
	t.Helper()
	var all []driver.Lease
	for _, f := range everyAsk(c) {
		l, err := f.ask(bounded(t))
		if err != nil {
			t.Fatalf("%s = %v, want a lease", f.name, err)
		}
		all = append(all, l)
	}
	r := MustNewRegister(c, "/app/register")
	if err := r.Save(bounded(t), []byte("kept"), 0); err != nil {
		t.Fatalf("Save() = %v", err)
	}
	return all
}

type namedAsk struct {
	name string
	path string // below the chroot, of what is asked for
	ask  func(ctx context.Context) (driver.Lease, error)
}

// everyAsk is a way to ask for each kind of lease, of one that excludes all
// others. It goes on asking while ZooKeeper cannot be asked.
func everyAsk(c *zookeeper.Client) []namedAsk {
	id := idem.NewKeyID("test", "everything")
	q := queue.MustNew(c, "/app/queue")
	all := []namedAsk{
		{"lock", strings.TrimPrefix(lockPath(c, id), clientOf(c).Chroot), func(ctx context.Context) (driver.Lease, error) {
			l, err := driver.Acquire(ctx, c.Locker(), request(id))
			if err != nil {
				return nil, err
			}
			return l, nil
		}},
		{"mutex", "/app/mutex", plain(MustNewMutex(c, "/app/mutex").Acquire)},
		{"writer", "/app/rw", plain(MustNewRWMutex(c, "/app/rw").AcquireWrite)},
		{"semaphore", "/app/semaphore", plain(func(ctx context.Context) (*Lease, error) {
			return MustNewSemaphore(c, "/app/semaphore", 2).Acquire(ctx, 2)
		})},
		{"leader", "/app/election", func(ctx context.Context) (driver.Lease, error) {
			l, err := MustNewElection(c, "/app/election", "somebody").Campaign(ctx)
			if err != nil {
				return nil, err
			}
			return l, nil
		}},
		{"delivery", "/app/queue", func(ctx context.Context) (driver.Lease, error) {
			n, err := q.Len(ctx)
			if err == nil && n == 0 {
				_, err = q.Offer(ctx, []byte("element"))
			}
			if err != nil {
				return nil, err
			}
			d, err := q.Receive(ctx)
			if err != nil {
				return nil, err
			}
			return d, nil
		}},
	}
	for i, f := range all {
		all[i].ask = func(ctx context.Context) (l driver.Lease, err error) {
			for l, err = f.ask(ctx); errors.Is(err, driver.ErrUnavailable) && !session.Refusal(err) && ctx.Err() == nil && clientOf(c).Keeper.AwaitUsable(ctx); {
				l, err = f.ask(ctx)
			}
			return l, err
		}
	}
	return all
}

// plain drops what a recipe's lease adds.
func plain(f ask) func(ctx context.Context) (driver.Lease, error) {
	return func(ctx context.Context) (driver.Lease, error) {
		l, err := f(ctx)
		if err != nil {
			return nil, err
		}
		return l, nil
	}
}

func wantHeldStill[L driver.Lease](t testing.TB, all []L) {
	t.Helper()
	for _, l := range all {
		if _, err := l.Check(bounded(t)); err != nil {
			t.Errorf("Check() of %v = %v, want a held lease", l.Fence(), err)
		}
	}
}

func releaseAll[L driver.Lease](t testing.TB, all []L) {
	t.Helper()
	for _, l := range all {
		if err := l.Release(bounded(t)); err != nil {
			t.Errorf("Release() of %v = %v", l.Fence(), err)
		}
	}
}

// With credentials nobody else can touch anything: neither what is locked, nor
// its parents, nor the session's member, nor make anything beside them. And the
// owner is not hindered, over reconnects and over the end of its session.
func TestACLKeepsStrangersOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0) // for its proxy
	cfg := r.Config
	cfg.Chroot, cfg.Credentials, cfg.ACL = testserver.Chroot(t), []zookeeper.Credential{mine}, nil
	c := open(t, cfg)
	held := holdEverything(t, c)
	servers := testserver.SharedZooKeeper(t)
	all := tree(t, stranger(t, servers, mine), cfg.Chroot)
	if len(all) < 20 {
		t.Errorf("only %q, the test tests little", all)
	}
	for name, conn := range map[string]*zk.Conn{
		"nobody":       stranger(t, servers),
		"somebody":     stranger(t, servers, theirs),
		"another user": stranger(t, servers, zookeeper.Credential{Scheme: "digest", Secret: []byte("other:secret")}),
	} {
		for _, path := range all {
			if path != cfg.Chroot { // checked at "/"
				if err := conn.Delete(path, -1); !errors.Is(err, zk.ErrNoAuth) {
					t.Errorf("%s: Delete(%s) = %v, want %v", name, path, err, zk.ErrNoAuth)
				}
			} else if err := conn.Delete(path, -1); !errors.Is(err, zk.ErrNotEmpty) {
				t.Errorf("%s: Delete(%s) = %v, want %v", name, path, err, zk.ErrNotEmpty)
			}
			if _, err := conn.Create(path+"/x", nil, 0, zk.WorldACL(zk.PermAll)); !errors.Is(err, zk.ErrNoAuth) {
				t.Errorf("%s: Create(%s/x) = %v, want %v", name, path, err, zk.ErrNoAuth)
			}
			if _, err := conn.Set(path, nil, -1); !errors.Is(err, zk.ErrNoAuth) {
				t.Errorf("%s: Set(%s) = %v, want %v", name, path, err, zk.ErrNoAuth)
			}
			if _, err := conn.SetACL(path, zk.WorldACL(zk.PermAll), -1); !errors.Is(err, zk.ErrNoAuth) {
				t.Errorf("%s: SetACL(%s) = %v, want %v", name, path, err, zk.ErrNoAuth)
			}
		}
	}
	wantHeldStill(t, held)
	for range 3 {
		r.Proxy.Cut() // credentials are presented again
		until(t, "connected again", func() bool { return c.Locker().Ping(bounded(t)) == nil })
		wantHeldStill(t, held)
	}
	releaseAll(t, held)
	releaseAll(t, holdEverythingAgain(t, c))

	old := sessionOf(c)
	held = holdEverythingAgain(t, c)
	until(t, "session killed", func() bool {
		return testserver.KillSession(servers[0], old.Session.Status.ID(), password(r.Proxy)) == nil || old.Session.Status.Err() != nil
	})
	until(t, "another session", func() bool { s, err := clientOf(c).Table(); return err == nil && s != old })
	for _, l := range held {
		await(t, "lease lost", l.Done())
	}
	releaseAll(t, holdEverythingAgain(t, c))
	if open, err := c.OpenParents(bounded(t), "/app/mutex"); len(open) > 0 || err != nil {
		t.Errorf("OpenParents() = %q, %v; want none", open, err)
	}
}

func holdEverythingAgain(t testing.TB, c *zookeeper.Client) []driver.Lease {
	t.Helper()
	r := MustNewRegister(c, "/app/register")
	data, version, err := r.Load(bounded(t))
	if err != nil || string(data) != "kept" {
		t.Fatalf("Load() = %q, %v", data, err)
	}
	if err := r.Save(bounded(t), data, version); err != nil {
		t.Errorf("Save() = %v", err)
	}
	var all []driver.Lease
	for _, f := range everyAsk(c) {
		l, err := f.ask(bounded(t))
		if err != nil {
			t.Fatalf("%s = %v, want a lease", f.name, err)
		}
		all = append(all, l)
	}
	return all
}
