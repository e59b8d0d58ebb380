package recipes

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// What belongs to others is refused at once, by an error that says so.
func TestACLOfOthers(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	cfg.Credentials = []zookeeper.Credential{mine}
	owner := open(t, cfg)
	releaseAll(t, holdEverything(t, owner))
	theirConn := stranger(t, cfg.Servers, theirs)
	apart := testserver.Chroot(t)
	if _, err := theirConn.Create(apart, nil, 0, zk.AuthACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*zookeeper.Config){
		"no credentials":     func(cfg *zookeeper.Config) { cfg.Credentials = nil },
		"other credentials":  func(cfg *zookeeper.Config) { cfg.Credentials = []zookeeper.Credential{theirs} },
		"chroot of others":   func(cfg *zookeeper.Config) { cfg.Chroot = apart },
		"below others":       func(cfg *zookeeper.Config) { cfg.Chroot = apart + "/a/b" },
		"an ACL for another": func(cfg *zookeeper.Config) { cfg.Home, cfg.ACL = "/base", zk.DigestACL(zk.PermAll, "other", "secret") },
		"an ACL for reading": func(cfg *zookeeper.Config) { cfg.Home, cfg.ACL = "/other", zk.AuthACL(zk.PermRead|zk.PermCreate) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := cfg
			change(&cfg)
			began := time.Now()
			c, err := zookeeper.Open(bounded(t), cfg)
			if err == nil {
				c.Abandon()
				t.Fatal("zookeeper.Open() succeeded")
			}
			if !errors.Is(err, zookeeper.ErrNotPermitted) || !errors.Is(err, zk.ErrNoAuth) || strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), "secret") {
				t.Errorf("zookeeper.Open() = %q, want one line, and %v", err, zookeeper.ErrNotPermitted)
			}
			if took := time.Since(began); took > patience/2 {
				t.Errorf("zookeeper.Open() took %v", took)
			}
			t.Log(err)
		})
	}
	t.Run("an identity is missing", func(t *testing.T) {
		t.Parallel()
		cfg := cfg
		cfg.Credentials, cfg.ACL = nil, zk.AuthACL(zk.PermAll)
		if _, err := zookeeper.Open(bounded(t), cfg); !errors.Is(err, zk.ErrInvalidACL) || !strings.Contains(err.Error(), "not authenticated this client") {
			t.Errorf("zookeeper.Open() = %v, want %v", err, zk.ErrInvalidACL)
		}
	})
	// The client itself is welcome, but some paths are not its own.
	t.Run("paths of others", func(t *testing.T) {
		t.Parallel()
		cfg := sharedConfig(t)
		c := open(t, cfg)
		if _, err := theirConn.Create(cfg.Chroot+"/app", nil, 0, zk.AuthACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		for _, f := range everyAsk(c)[1:] {
			for made := range 2 {
				ctx := bounded(t)
				if l, err := f.ask(ctx); !errors.Is(err, zookeeper.ErrNotPermitted) || ctx.Err() != nil {
					t.Errorf("%s, parent made: %d: %v, %v; want %v at once", f.name, made, l, err, zookeeper.ErrNotPermitted)
				}
				if _, err := theirConn.Create(cfg.Chroot+f.path, nil, 0, zk.AuthACL(zk.PermAll)); made == 0 && err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := MustNewMutex(c, "/app/mutex").Participants(bounded(t)); !errors.Is(err, zookeeper.ErrNotPermitted) {
			t.Errorf("Participants() = %v, want %v", err, zookeeper.ErrNotPermitted)
		}
		if _, _, err := MustNewRegister(c, "/app/mutex").Load(bounded(t)); !errors.Is(err, zookeeper.ErrNotPermitted) {
			t.Errorf("Load() = %v, want %v", err, zookeeper.ErrNotPermitted)
		}
		for _, path := range []string{"/app/mutex/x", "/app/no/such/parent"} {
			if err := MustNewRegister(c, path).Save(bounded(t), nil, 0); !errors.Is(err, zookeeper.ErrNotPermitted) {
				t.Errorf("Save() at %s = %v, want %v", path, err, zookeeper.ErrNotPermitted)
			}
		}
		// A lock that somebody else has made and nobody may read.
		id := newID()
		path := lockPath(c, id)
		if l, err := c.Locker().TryAcquire(bounded(t), request(id)); err != nil {
			t.Fatal(err)
		} else if err := l.Release(bounded(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := theirConn.Create(path, nil, zk.FlagEphemeral, zk.AuthACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		if l, err := c.Locker().TryAcquire(bounded(t), request(id)); !errors.Is(err, zookeeper.ErrNotPermitted) {
			t.Errorf("TryAcquire() = %v, %v; want %v", l, err, zookeeper.ErrNotPermitted)
		}
		await(t, "background work", clientOf(c).Keeper.Background.Idle())
		if err := c.Locker().Ping(bounded(t)); err != nil {
			t.Errorf("Ping() = %v", err)
		}
	})
}
