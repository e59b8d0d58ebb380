package line_test

import (
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/zktest"
)

// A path of others is refused at once, however much of it is missing. What the client can make below
// it is made.
func TestEnsureBelowZnodesOfOthers(t *testing.T) {
	t.Parallel()
	cfg := recipetest.SharedConfig(t)
	c := recipetest.Open(t, cfg)
	table := recipetest.SessionOf(c)
	theirs := zktest.Stranger(t, cfg.Servers, session.Credential{Scheme: "digest", Secret: []byte("theirs:secret")})
	for _, z := range []struct {
		path string
		acl  []zk.ACL
	}{{"/theirs", zk.AuthACL(zk.PermAll)}, {"/theirs/ours", zk.WorldACL(zk.PermAll)}} {
		if _, err := theirs.Create(cfg.Chroot+z.path, nil, 0, z.acl); err != nil {
			t.Fatal(err)
		}
	}
	for path, permitted := range map[string]bool{
		"/theirs/a":            false,
		"/theirs/a/b":          false,
		"/theirs/a/b/c":        false,
		"/theirs/a/b/c/d":      false,
		"/theirs/ours/a":       true,
		"/theirs/ours/b/c/d/e": true,
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			ctx := zktest.Bounded(t)
			err := line.EnsureFor(ctx, table, cfg.Chroot+path)
			if permitted && err != nil || !permitted && !errors.Is(err, zookeeper.ErrNotPermitted) || ctx.Err() != nil {
				t.Errorf("EnsureFor(%s) = %v, %v, want it permitted: %v, at once", path, err, ctx.Err(), permitted)
			}
		})
	}
}

// All znodes above a line are made, those of the chroot too if an operator has removed them.
func TestEnsureMakesWhatIsMissing(t *testing.T) {
	t.Parallel()
	cfg := recipetest.SharedConfig(t)
	c := recipetest.Open(t, cfg)
	cfg.Chroot += "/app"
	recipetest.ClientOf(c).Chroot = cfg.Chroot // as if it had been removed
	table, raw := recipetest.SessionOf(c), zktest.RawConn(t, cfg.Servers)
	for range 2 { // the second time they are there
		if err := line.Ensure(table, cfg.Chroot+"/a/b", []byte("data")); err != nil {
			t.Fatalf("Ensure() = %v", err)
		}
	}
	for path, want := range map[string]string{"": "", "/a": "", "/a/b": "data"} {
		if data, _, err := raw.Get(cfg.Chroot + path); err != nil || string(data) != want {
			t.Errorf("znode %s%s has %q, %v, want %q", cfg.Chroot, path, data, err, want)
		}
	}
}
