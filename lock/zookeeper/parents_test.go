package zookeeper

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// aheadConfig is one for clients that make the parents of all locks ahead, as they
// do by default.
func aheadConfig(t testing.TB) Config {
	cfg := sharedConfig(t)
	cfg.ParentsOnDemand = false
	return cfg
}

func takeOne(t testing.TB, c *Client) {
	t.Helper()
	takeNamed(t, c, newID())
}

func takeNamed(t testing.TB, c *Client, id idem.KeyID) {
	t.Helper()
	lease, err := c.Locker().TryAcquire(bounded(t), request(id))
	if err != nil {
		t.Fatalf("TryAcquire() = %v", err)
	}
	if err := lease.Release(bounded(t)); err != nil {
		t.Fatalf("Release() = %v", err)
	}
}

// awaitParents waits until the parents of all locks are there, and nothing else.
func awaitParents(t testing.TB, raw *zk.Conn, root string) {
	t.Helper()
	var names []string
	until(t, "the parents of all locks", func() bool {
		names = parentsBelow(t, raw, root)
		return len(names) >= parents
	})
	slices.Sort(names)
	for i, name := range names {
		if name != parentName(i) {
			t.Fatalf("%s has the child %q at %d of %d, want %q", root, name, i, len(names), parentName(i))
		}
	}
}

// parentsBelow lists the root of locks, without what is kept there besides.
func parentsBelow(t testing.TB, raw *zk.Conn, root string) []string {
	t.Helper()
	names, _, err := raw.Children(root)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatalf("Children(%s) = %v", root, err)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "base" })
}

func TestParentsAreMadeAhead(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"below the root":     func(*Config) {},
		"below a longer one": func(cfg *Config) { cfg.Root = "/apps/payments/lock" },
		"for an identity":    func(cfg *Config) { cfg.Credentials = []Credential{mine} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := aheadConfig(t)
			change(&cfg)
			server := cfg.Servers
			proxy := testserver.StartZooKeeperProxy(t, server[0])
			cfg.Servers = []string{proxy.Addr()}
			c := open(t, cfg)
			root := c.cfg.Chroot + c.cfg.Root
			writes := proxy.Count(root + "/")
			takeOne(t, c)
			raw := stranger(t, server, mine)
			awaitParents(t, raw, root)
			// A write for each block, and those of the lock that came first: its create
			// twice, its parent and its delete; and what was refused between them.
			if n := writes.Seen().Requests[testserver.OpMulti]; n > parents/parentsAtOnce+16 {
				t.Errorf("making the parents took %d writes", n)
			}
			for _, i := range []int{0, 1, parentsAtOnce, parents - 1} {
				acl, _, err := raw.GetACL(root + "/" + parentName(i))
				if err != nil || len(acl) != 1 || (acl[0].Scheme == "world") != (len(cfg.Credentials) == 0) {
					t.Errorf("ACL of %s = %v, %v; want that of the client", parentName(i), acl, err)
				}
			}
			// The next session finds them.
			writes.Reset()
			second := open(t, cfg)
			takeOne(t, second)
			if err := second.Close(bounded(t)); err != nil {
				t.Errorf("Close() = %v", err)
			}
			if n := writes.Seen().Requests[testserver.OpMulti]; n != 2 {
				t.Errorf("with all parents there a lock took %d writes, want its create and its delete", n)
			}
		})
	}
}

// What was made before, by whatever client, is left as it is, and instances that
// start together do no harm to each other.
func TestParentsAreMadeByManyAtOnce(t *testing.T) {
	t.Parallel()
	cfg := aheadConfig(t)
	var logged journal
	cfg.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
	first := open(t, cfg)
	raw := rawConn(t, cfg.Servers)
	root := first.cfg.Chroot + first.cfg.Root
	for i := 0; i < parents; i += 100 {
		if _, err := raw.Create(root+"/"+parentName(i), []byte("mine"), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	clients := []*Client{first, open(t, cfg), open(t, cfg), open(t, cfg)}
	var wg sync.WaitGroup
	for _, c := range clients {
		for range 32 {
			wg.Go(func() { takeOne(t, c) })
		}
	}
	wg.Wait()
	awaitParents(t, raw, root)
	for i := 0; i < parents; i += 100 {
		if data, _, err := raw.Get(root + "/" + parentName(i)); err != nil || string(data) != "mine" {
			t.Errorf("Get(%s) = %q, %v; want it as it was", parentName(i), data, err)
		}
	}
	for _, c := range clients {
		if err := c.Close(bounded(t)); err != nil {
			t.Errorf("Close() = %v", err)
		}
	}
	if logged.String() != "" {
		t.Errorf("logged:\n%s", logged.String())
	}
}

// A client that takes no lock through a Locker makes no parents, nor does one that
// was told to leave them.
func TestParentsAreMadeForLockersOnly(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(t *testing.T, c *Client) int{
		"nothing": func(*testing.T, *Client) int { return 0 },
		"on demand": func(t *testing.T, c *Client) int {
			takeOne(t, c)
			return 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := aheadConfig(t)
			cfg.ParentsOnDemand = name == "on demand"
			c := open(t, cfg)
			root := c.cfg.Chroot + c.cfg.Root
			want := use(t, c)
			if err := c.Close(bounded(t)); err != nil {
				t.Errorf("Close() = %v", err)
			}
			if names := parentsBelow(t, rawConn(t, cfg.Servers), root); len(names) != want {
				t.Errorf("%d parents were made, want %d", len(names), want)
			}
		})
	}
}

// Where the parents may not be made, locks go on below those that there are, and the
// operator is told once.
func TestParentsThatMayNotBeMade(t *testing.T) {
	t.Parallel()
	service := zk.DigestACL(zk.PermAll, "payments", "secret")
	for name, root := range map[string][]zk.ACL{
		"made": append(zk.AuthACL(zk.PermAll), zk.DigestACL(zk.PermRead, "payments", "secret")...),
		"seen": zk.AuthACL(zk.PermAll),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := aheadConfig(t)
			cfg.Credentials = []Credential{mine}
			var logged journal
			cfg.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
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
			for n := range byte(2) {
				later := id
				later[0] += 1 + n
				l, err := c.Locker().TryAcquire(bounded(t), request(id))
				if err != nil {
					t.Fatalf("TryAcquire() = %v", err)
				}
				until(t, "a warning", func() bool { return logged.Has("cannot be made ahead") })
				if _, err := c.Locker().TryAcquire(bounded(t), request(later)); !errors.Is(err, ErrNotPermitted) {
					t.Errorf("TryAcquire() without a parent = %v, want %v", err, ErrNotPermitted)
				}
				// The administrator makes one that was missing when the session looked.
				if _, err := admin.Create(cfg.Chroot+"/lock/"+later.String()[:3], nil, 0, service); err != nil {
					t.Fatal(err)
				}
				takeNamed(t, c, later)
				old := sessionOf(c)
				old.GiveUp()
				until(t, "another session", func() bool { s, err := c.usable(); return err == nil && s != old })
				await(t, "lease lost", l.Done())
				until(t, "the lock to go", func() bool { ok, _, err := admin.Exists(c.cfg.lockPath(id)); return err == nil && !ok })
			}
			if err := c.Close(bounded(t)); err != nil {
				t.Errorf("Close() = %v", err)
			}
			if n := strings.Count(logged.String(), "cannot be made ahead"); n != 1 || !strings.Contains(logged.String(), "not permitted by the ACL of "+cfg.Chroot+"/lock") {
				t.Errorf("warned %d times:\n%s", n, logged.String())
			}
		})
	}
}

// The making of parents ends with its client, wherever it is.
func TestParentsStopWithTheClient(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Client){
		"Close":   func(c *Client) { _ = c.Close(context.Background()) },
		"Abandon": func(c *Client) { c.Abandon() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := aheadConfig(t)
			server := cfg.Servers[0]
			proxy := testserver.StartZooKeeperProxy(t, server)
			cfg.Servers = []string{proxy.Addr()}
			c := open(t, cfg)
			id := newID()
			neighbour := c.cfg.Chroot + "/lock/" + parentName((int(id[0])<<4|int(id[1])>>4)^1)
			block := proxy.HoldNextReply(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(neighbour)))
			acquired := make(chan struct{})
			go func() {
				_, _ = c.Locker().TryAcquire(context.Background(), request(id)) // Close lets it have the lock
				close(acquired)
			}()
			await(t, "a block of parents under way", block.Held())
			ended := make(chan struct{})
			go func() {
				end(c)
				close(ended)
			}()
			await(t, "the client to end", ended)
			await(t, "the TryAcquire that waits for parents", acquired)
		})
	}
}

// Nothing is refused where hundreds of locks are the first below their parents.
func TestLocksOnAnEmptyEnsemble(t *testing.T) {
	t.Parallel()
	for name, onDemand := range map[string]bool{"ahead": false, "on demand": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := aheadConfig(t)
			cfg.ParentsOnDemand = onDemand
			c := open(t, cfg)
			var wg sync.WaitGroup
			for range 256 {
				wg.Go(func() { takeOne(t, c) })
			}
			wg.Wait()
		})
	}
}

// Locks that come before their parents wait for them, so none of them is refused.
func TestLocksWaitForTheirParents(t *testing.T) {
	t.Parallel()
	cfg := aheadConfig(t)
	proxy := testserver.StartZooKeeperProxy(t, cfg.Servers[0])
	cfg.Servers = []string{proxy.Addr()}
	c := open(t, cfg)
	look := proxy.HoldNextReply(testserver.All(testserver.Op(testserver.OpGetChildren2), testserver.Contains(c.cfg.rootPath())))
	id := newID()
	own := proxy.Count(c.cfg.lockPath(id))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { takeOne(t, c) })
	}
	wg.Go(func() { takeNamed(t, c, id) })
	await(t, "the look at the parents", look.Held())
	if n := own.Seen().Requests[testserver.OpMulti]; n != 0 {
		t.Errorf("a lock was sent in %d Multis before its parent was there, want 0", n)
	}
	look.Release()
	wg.Wait()
	if n := own.Seen().Requests[testserver.OpMulti]; n != 2 {
		t.Errorf("a lock was sent in %d Multis, want its create and its delete", n)
	}
}

// Locks that miss the same parent share the write that makes it.
func TestParentIsMadeOnceForAllWhoMissIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	s, parent := sessionOf(r.c), r.cfg.Chroot+"/parent"
	write := r.proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(parent)))
	writes := r.proxy.Count(parent)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := s.EnsureParents(parent + "/x"); err != nil {
				t.Errorf("EnsureParents() = %v", err)
			}
		})
	}
	await(t, "the write", write.Held())
	write.Release()
	wg.Wait()
	if n := writes.Seen().Requests[testserver.OpMulti]; n != 1 {
		t.Errorf("the parent was made in %d Multis, want one", n)
	}
}
