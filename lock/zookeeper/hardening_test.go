package zookeeper

import (
	"context"
	"errors"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/internal/uuid"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
)

// A client follows the domains that others give the ensemble.
func TestDomainIsFollowed(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	c, raw := open(t, cfg), rawConn(t, cfg.Servers)
	for range 2 {
		domain := uuid.New()
		if _, err := raw.Set(c.cfg.domainPath(), []byte(domain), -1); err != nil {
			t.Fatal(err)
		}
		until(t, "the new domain", func() bool { return c.Domain() == domain })
		if got := taken(t, c, newID()).Fence().Domain; got != domain {
			t.Errorf("fence of domain %q, want %q", got, domain)
		}
	}
}

// Locks under different roots do not exclude each other, so they are of
// different domains.
func TestDomainTellsRootsApart(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	first, same := open(t, cfg), open(t, cfg)
	cfg.Root = "/elsewhere/locks"
	other := open(t, cfg)
	if first.Domain() != same.Domain() || len(first.Domain()) != len(uuid.New()) {
		t.Errorf("Domain() = %q and %q, want the same UUID", first.Domain(), same.Domain())
	}
	if want := first.Domain() + cfg.Root; other.Domain() != want {
		t.Errorf("Domain() = %q, want %q", other.Domain(), want)
	}
	lease, err := other.Locker().TryAcquire(bounded(t), request(newID()))
	if err != nil {
		t.Fatal(err)
	}
	if got := lease.Fence().Domain; got != other.Domain() {
		t.Errorf("fence of domain %q, want %q", got, other.Domain())
	}
	cfg.Root = "/" + strings.Repeat("x", maxRoot)
	if _, err := Open(bounded(t), cfg); err == nil {
		t.Error("Open() takes a root that does not fit into a record")
	}
}

// A call under way ends when the session can no longer be trusted, although its
// context never does: not only when the session is given up.
func TestCallsEndWithTrust(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3*time.Second)
	lease := r.take(r.l)
	s := sessionOf(r.c)
	r.proxy.BlackHole(testserver.Both)
	errs := make(chan error, 3)
	go func() { errs <- r.l.Ping(context.Background()) }()
	go func() {
		_, err := r.l.TryAcquire(context.Background(), request(r.sibling()))
		errs <- err
	}()
	go func() {
		_, err := r.c.OpenParents(context.Background())
		errs <- err
	}()
	for range 3 {
		if err := <-errs; !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Ping(), TryAcquire() or OpenParents() = %v, want %v", err, driver.ErrUnavailable)
		}
		if s.session.Status.Err() != nil {
			t.Error("the call has waited until the session was over")
		}
	}
	r.wantLost(lease)
}

// Nobody was seen to hold the lock, so it is not called locked.
func TestLosingEveryCreateIsNotLocked(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	for range held.MaxTries {
		r.proxy.DropNextRequest(r.onLock())
	}
	if lease, err := r.l.TryAcquire(bounded(t), request(r.id)); !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() = %v, %v; want %v", lease, err, driver.ErrUnavailable)
	}
	r.idle(r.c)
	r.release(r.takeSoon(r.other))
}

// The connection breaks while the session starts.
func TestOpenSurvivesLosses(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	start := func(t *testing.T, change func(*testserver.Proxy, *Config)) {
		p := testserver.StartZooKeeperProxy(t, server[0])
		cfg := config(t, p.Addr())
		change(p, &cfg)
		if err := open(t, cfg).Locker().Ping(bounded(t)); err != nil {
			t.Errorf("Ping() = %v", err)
		}
	}
	for _, tt := range []struct {
		name string
		op   int32
	}{{"credential", testserver.OpAuth}, {"member", testserver.OpCreate}, {"read", testserver.OpGetData}, {"first write", testserver.OpMulti}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			start(t, func(p *testserver.Proxy, cfg *Config) {
				cfg.Credentials = []Credential{{Scheme: "digest", Secret: []byte("user:password")}}
				p.DropNextReply(testserver.Op(tt.op))
			})
		})
	}
	// So slow a start that the first write comes too late to be trusted.
	t.Run("slow", func(t *testing.T) {
		t.Parallel()
		start(t, func(p *testserver.Proxy, cfg *Config) {
			cfg.SessionTimeout = 3 * time.Second
			for range 2 {
				hold := p.HoldNextReply(testserver.All(testserver.Op(testserver.OpCreate), testserver.Contains(cfg.Chroot)))
				go func() {
					<-hold.Held()
					time.Sleep(1600 * time.Millisecond)
					hold.Release()
				}()
			}
		})
	})
}

// The servers refuse a release. It goes on until they do not, and asks about once a second.
func TestRefusedReleaseGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.l)
	allow := func(perms int32) {
		t.Helper()
		if _, err := r.raw.SetACL(path.Dir(r.path), zk.WorldACL(perms), -1); err != nil {
			t.Fatal(err)
		}
	}
	allow(zk.PermAll &^ zk.PermDelete)
	requests := r.proxy.Count(r.path)
	lease.ReleaseInBackground()
	tries := func(n int) time.Time {
		until(t, "a try", func() bool { return requests.Seen().Requests[testserver.OpMulti] >= n })
		return time.Now()
	}
	if first, second := tries(1), tries(2); second.Sub(first) < time.Second/2 {
		t.Errorf("the second try came %v after the first one, want about a second", second.Sub(first))
	}
	allow(zk.PermAll)
	r.release(lease)
	if r.exists() {
		t.Error("the lock is there after its release")
	}
}

// Parents of locks that may not be listed may be open to the world.
func TestOpenParentsBelowAHiddenRoot(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	if _, err := r.raw.SetACL(r.cfg.rootPath(), zk.WorldACL(zk.PermAll&^zk.PermRead), -1); err != nil {
		t.Fatal(err)
	}
	if open, err := r.c.OpenParents(bounded(t)); !errors.Is(err, ErrNotPermitted) || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("OpenParents() = %q, %v; want %v and %v", open, err, ErrNotPermitted, driver.ErrUnavailable)
	}
}
