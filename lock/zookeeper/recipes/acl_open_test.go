package recipes

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// Parents that were made without credentials are found, also one by one.
func TestOpenParents(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	cfg.Chroot += "/payments"
	id := newID()
	unwarned := new(journal)
	cfg.Logger = slog.New(slog.NewTextHandler(unwarned, nil))
	careless := open(t, cfg)
	l, err := careless.Locker().TryAcquire(bounded(t), request(id))
	if err != nil {
		t.Fatal(err)
	}
	releaseAll(t, []driver.Lease{l})
	shard := lockPath(careless, id)
	shard = shard[:strings.LastIndexByte(shard, '/')]

	told := new(journal)
	cfg.Credentials, cfg.Logger = []zookeeper.Credential{mine}, slog.New(slog.NewTextHandler(told, nil))
	c := open(t, cfg)
	top := cfg.Chroot[:strings.LastIndexByte(cfg.Chroot, '/')]
	want := []string{top, cfg.Chroot, cfg.Chroot + "/idem", cfg.Chroot + "/idem/domain", cfg.Chroot + "/idem/members", cfg.Chroot + "/lock"}
	until(t, "warning", func() bool { return told.Has("every client can unlock") && told.Has(strings.Join(want, " ")) })

	raw := stranger(t, cfg.Servers, mine)
	create(t, raw, cfg.Chroot+"/app", 0)
	lease, err := MustNewMutex(c, "/app/mutex").Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	defer lease.ReleaseInBackground()
	open, err := c.OpenParents(bounded(t), "/app/mutex", "/not/there")
	want = append(want, shard, cfg.Chroot+"/app", cfg.Chroot+"/lock/home")
	slices.Sort(want)
	if !slices.Equal(open, want) || err != nil {
		t.Errorf("OpenParents() = %q, %v; want %q", open, err, want)
	}
	// And closed, one after the other, they are found no more. The world may still read them.
	closed := append(zk.AuthACL(zk.PermAll), zk.WorldACL(zk.PermRead)...)
	for len(want) > 0 {
		if _, err := raw.SetACL(want[0], closed, -1); err != nil {
			t.Fatalf("SetACL(%s) = %v", want[0], err)
		}
		want = want[1:]
		if open, err = c.OpenParents(bounded(t), "/app/mutex"); !slices.Equal(open, want) || err != nil {
			t.Errorf("OpenParents() = %q, %v; want %q", open, err, want)
		}
	}
	if told.Has("cannot tell") || unwarned.Has("every client can unlock") {
		t.Errorf("needless warnings: %s%s", told, unwarned)
	}
	// What cannot be looked at is not called safe.
	theirConn := stranger(t, cfg.Servers, theirs)
	hidden := testserver.Chroot(t)
	if _, err := theirConn.Create(hidden, nil, 0, append(zk.AuthACL(zk.PermAll), zk.WorldACL(zk.PermCreate)...)); err != nil {
		t.Fatal(err)
	}
	cfg.Chroot = hidden
	blind, err := zookeeper.Open(bounded(t), cfg)
	if err != nil {
		t.Fatalf("zookeeper.Open() = %v", err)
	}
	defer func() { _ = blind.Close(bounded(t)) }()
	if open, err := blind.OpenParents(bounded(t)); !errors.Is(err, zookeeper.ErrNotPermitted) || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("OpenParents() = %q, %v; want %v and %v", open, err, zookeeper.ErrNotPermitted, driver.ErrUnavailable)
	}
	until(t, "warning", func() bool { return told.Has("cannot tell") })
	if _, err := c.OpenParents(bounded(t), "relative"); err == nil {
		t.Error("OpenParents() takes a relative path")
	}
}

// An administrator makes the chroot, for the service alone. The service may use
// it and need not be allowed to do anything outside.
func TestACLOfAnAdministrator(t *testing.T) {
	t.Parallel()
	admin := zookeeper.Credential{Scheme: "digest", Secret: []byte("admin:pw")}
	for name, perms := range map[string]int32{"everything": zk.PermAll, "making and deleting": zk.PermCreate | zk.PermDelete | zk.PermRead} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := sharedConfig(t)
			cfg.Credentials = []zookeeper.Credential{mine}
			raw := stranger(t, cfg.Servers, admin)
			top := cfg.Chroot
			cfg.Chroot += "/payments"
			if _, err := raw.Create(top, nil, 0, zk.AuthACL(zk.PermAll)); err != nil {
				t.Fatal(err)
			}
			acl := append(zk.AuthACL(zk.PermAll), zk.DigestACL(perms, "payments", "secret")...)
			if _, err := raw.Create(cfg.Chroot, nil, 0, acl); err != nil {
				t.Fatal(err)
			}
			releaseAll(t, holdEverything(t, open(t, cfg)))
		})
	}
}

// An ACL that is given is that of everything: here the administrator may look
// and delete, the service everything, and nobody else anything.
func TestACLGiven(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	cfg.Credentials = []zookeeper.Credential{mine}
	cfg.ACL = append(zk.AuthACL(zk.PermAll), zk.DigestACL(zk.PermRead|zk.PermDelete, "admin", "pw")...)
	c := open(t, cfg)
	held := holdEverything(t, c)
	admin := stranger(t, cfg.Servers, zookeeper.Credential{Scheme: "digest", Secret: []byte("admin:pw")})
	for _, path := range tree(t, admin, cfg.Chroot) {
		acl, _, err := admin.GetACL(path)
		if err != nil || len(acl) != 2 || slices.ContainsFunc(acl, func(a zk.ACL) bool { return a.Scheme == "world" }) {
			t.Errorf("GetACL(%s) = %v, %v; want the two", path, acl, err)
		}
	}
	if err := admin.Delete(pathOf(held[1]), -1); err != nil {
		t.Errorf("Delete() by the administrator = %v", err)
	}
	until(t, "loss noticed", func() bool { _, err := held[1].Check(bounded(t)); return err != nil })
	releaseAll(t, held)
}

// Credentials are changed without a gap: for a while both are presented.
func TestCredentialsAreReplaced(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	cfg.Credentials = []zookeeper.Credential{mine}
	old := open(t, cfg)
	held, err := MustNewMutex(old, "/app/mutex").Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Credentials = []zookeeper.Credential{mine, theirs}
	both := open(t, cfg)
	if l, err := MustNewMutex(both, "/app/mutex").TryAcquire(bounded(t)); err == nil {
		t.Errorf("TryAcquire() = %v beside the old credentials' holder", l)
	}
	releaseAll(t, []*Lease{held})
	// The administrator hands over what is there.
	raw := stranger(t, cfg.Servers, mine, theirs)
	for _, path := range tree(t, raw, cfg.Chroot) {
		if _, err := raw.SetACL(path, zk.AuthACL(zk.PermAll), -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			t.Errorf("SetACL(%s) = %v", path, err)
		}
	}
	cfg.Credentials = []zookeeper.Credential{theirs}
	releaseAll(t, holdEverything(t, open(t, cfg)))
	wantHeldStill(t, holdEverythingAgain(t, both))
}
