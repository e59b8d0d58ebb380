package zookeeper

import (
	"errors"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
)

func takeOne(t testing.TB, c *Client) {
	t.Helper()
	takeNamed(t, c, newID())
}

func takeNamed(t testing.TB, c *Client, id driver.KeyID) {
	t.Helper()
	lease, err := c.Locker().TryAcquire(bounded(t), request(id))
	if err != nil {
		t.Fatalf("TryAcquire(%s) = %v, want a lease", id, err)
	}
	if err := lease.Release(bounded(t)); err != nil {
		t.Fatalf("Release() = %v, want <nil>", err)
	}
}

// parentOf is the path of the parent of a lock.
func parentOf(c *Client, id driver.KeyID) string { return c.cfg.rootPath() + "/" + id.String()[:3] }

// A lock makes its missing parent in its own transaction, with the client's ACL. The next
// lock below it, of this session and of another client, is made alone. So no lock is
// refused.
func TestParentIsMadeWithTheLock(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"below the root":     func(*Config) {},
		"below a longer one": func(cfg *Config) { cfg.Root = "/apps/payments/lock" },
		"for an identity":    func(cfg *Config) { cfg.Credentials = []Credential{mine} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := sharedConfig(t)
			change(&cfg)
			servers := cfg.Servers
			proxy := testserver.StartZooKeeperProxy(t, servers[0])
			cfg.Servers = []string{proxy.Addr()}
			c, id := open(t, cfg), newID()
			writes := proxy.Count(parentOf(c, id))
			takeNamed(t, c, id)
			acl, _, err := stranger(t, servers, mine).GetACL(parentOf(c, id))
			if err != nil || len(acl) != 1 || (acl[0].Scheme == "world") != (len(cfg.Credentials) == 0) {
				t.Errorf("ACL of the parent = %v, %v; want that of the client", acl, err)
			}
			id[31]++
			takeNamed(t, c, id)
			takeNamed(t, open(t, cfg), id)
			if n := writes.Seen().Requests[testserver.OpMulti]; n != 6 {
				t.Errorf("3 locks took %d writes, want the create and the delete of each", n)
			}
		})
	}
}

// Existing parents are left as they are, and clients that start together on an empty
// ensemble refuse no lock.
func TestLocksOnAnEmptyEnsemble(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	clients := []*Client{open(t, cfg), open(t, cfg), open(t, cfg), open(t, cfg)}
	raw := rawConn(t, cfg.Servers)
	ids := make([]driver.KeyID, 20)
	for i := range ids {
		ids[i] = newID()
		if _, err := raw.Create(parentOf(clients[0], ids[i]), []byte("mine"), 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i, c := range clients {
		for range 32 {
			wg.Go(func() { takeOne(t, c) })
		}
		for _, id := range ids {
			id[31] = byte(i)
			wg.Go(func() { takeNamed(t, c, id) })
		}
	}
	wg.Wait()
	for _, id := range ids {
		if data, _, err := raw.Get(parentOf(clients[0], id)); err != nil || string(data) != "mine" {
			t.Errorf("Get(%s) = %q, %v; want it as it was", parentOf(clients[0], id), data, err)
		}
	}
}

// A client that takes no lock makes no parents.
func TestParentsAreMadeForLocksOnly(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	c := open(t, cfg)
	raw := rawConn(t, cfg.Servers)
	for want, use := range []func(){func() {}, func() { takeOne(t, c) }} {
		use()
		names, _, err := raw.Children(c.cfg.rootPath())
		if err != nil || len(names) != want+1 { // and "home"
			t.Errorf("Children(%s) = %q, %v; want %d parents", c.cfg.rootPath(), names, err, want)
		}
	}
}

// If a client may not make parents, or not even list them, it takes locks below those that
// an administrator has made, also later.
func TestParentsThatMayNotBeMade(t *testing.T) {
	t.Parallel()
	service := zk.DigestACL(zk.PermAll, "payments", "secret")
	for name, root := range map[string][]zk.ACL{
		"made": append(zk.AuthACL(zk.PermAll), zk.DigestACL(zk.PermRead, "payments", "secret")...),
		"seen": zk.AuthACL(zk.PermAll),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := sharedConfig(t)
			cfg.Credentials = []Credential{mine}
			admin := stranger(t, cfg.Servers, Credential{Scheme: "digest", Secret: []byte("admin:pw")})
			id := newID()
			for _, made := range []struct {
				path string
				acl  []zk.ACL
			}{{"", append(zk.AuthACL(zk.PermAll), service...)}, {"/lock", root}, {"/lock/" + id.String()[:3], service}} {
				if _, err := admin.Create(cfg.Chroot+made.path, nil, 0, made.acl); err != nil {
					t.Fatal(err)
				}
			}
			c := open(t, cfg)
			takeNamed(t, c, id)
			later := id
			later[0]++
			for range 2 {
				if _, err := c.Locker().TryAcquire(bounded(t), request(later)); !errors.Is(err, ErrNotPermitted) {
					t.Errorf("TryAcquire() without a parent = %v, want %v", err, ErrNotPermitted)
				}
			}
			if _, err := admin.Create(parentOf(c, later), nil, 0, service); err != nil {
				t.Fatal(err)
			}
			takeNamed(t, c, later)
		})
	}
}

// A parent is made again after a lost reply or request. Its callers do not notice.
func TestLostParent(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	s := sessionOf(r.c)
	for path, lose := range map[string]func(testserver.Match) <-chan struct{}{"/reply": r.proxy.DropNextReply, "/request": r.proxy.DropNextRequest} {
		path = r.cfg.Chroot + path
		lost := lose(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(path)))
		if err := s.table.Parents.EnsureParents(path + "/x"); err != nil {
			t.Errorf("EnsureParents() = %v, want <nil>", err)
		}
		await(t, "the loss", lost)
		if there, _, err := r.raw.Exists(path); !there || err != nil {
			t.Errorf("Exists(%s) = %t, %v, want the parent", path, there, err)
		}
	}
}

// All parents are made, also several at once. A parent that another client removes each time is an
// error.
func TestParentsAboveParents(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	s, top := sessionOf(r.c), r.cfg.Chroot+"/top"
	if err := s.table.Parents.EnsureParents(top + "/a/b/x"); err != nil {
		t.Errorf("EnsureParents() = %v, want <nil>", err)
	}
	if there, _, err := r.raw.Exists(top + "/a/b"); !there || err != nil {
		t.Errorf("Exists() = %t, %v, want the lowest parent", there, err)
	}
	if err := s.table.Parents.EnsureParents("/x"); err != nil {
		t.Errorf("EnsureParents() right below / = %v, want <nil>", err)
	}
	r.delete(top+"/a/b", top+"/a")
	match := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(top+"/a/b"))
	create := r.proxy.HoldNext(match)
	ensured := make(chan error, 1)
	go func() { ensured <- s.table.Parents.EnsureParents(top + "/a/b/x") }()
	for try := range held.MaxTries {
		await(t, "create", create.Held())
		if try > 0 {
			r.delete(top + "/a")
		}
		next := r.proxy.HoldNext(match)
		create.Release()
		create = next
	}
	if err := <-ensured; !errors.Is(err, zk.ErrNoNode) {
		t.Errorf("EnsureParents() below a parent that is removed each time = %v, want %v", err, zk.ErrNoNode)
	}
	create.Release()
}
