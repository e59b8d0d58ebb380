package recipes

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// moment is one in the making of a line: when a request is on its way that
// needs what was made before.
type moment struct {
	before func(chroot string) testserver.Match
	swept  []string // by then
}

// container matches the request that makes exactly this znode.
func container(path string) func(chroot string) testserver.Match {
	return func(chroot string) testserver.Match {
		length := binary.BigEndian.AppendUint32(nil, uint32(len(chroot+path)))
		return testserver.All(testserver.Op(testserver.OpCreateContainer), testserver.Contains(string(length)+chroot+path))
	}
}

// placeIn matches the request that takes a place in this line.
func placeIn(path string) func(chroot string) testserver.Match {
	return func(chroot string) testserver.Match {
		return testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(chroot+path+"/"+exclusive+"-"))
	}
}

// What was made a moment ago vanishes, as the servers' sweep of containers has
// it, while what goes below it is on its way: all of it is made again, and the
// lock is had.
func TestLineParentsVanishUnderWay(t *testing.T) {
	t.Parallel()
	for name, moments := range map[string][]moment{
		"grandparent":            {{container("/a/b"), []string{"/a"}}},
		"grandparent, twice":     {{container("/a/b"), []string{"/a"}}, {container("/a/b"), []string{"/a"}}},
		"parent":                 {{container("/a/b"), nil}, {container("/a/b/m"), []string{"/a/b"}}},
		"parent and grandparent": {{container("/a/b"), nil}, {container("/a/b/m"), []string{"/a/b", "/a"}}},
		"all of them":            {{container("/a/b"), nil}, {placeIn("/a/b/m"), []string{"/a/b/m", "/a/b", "/a"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			acquired := make(chan *Lease, 1)
			hold := r.Proxy.HoldNext(moments[0].before(r.Config.Chroot))
			go func() {
				l, err := MustNewMutex(r.Client, "/a/b/m").TryAcquire(bounded(t)) // once: no retry hides anything
				if err != nil {
					t.Errorf("TryAcquire() = %v, want a lease", err)
				}
				acquired <- l
			}()
			for i, m := range moments {
				await(t, "moment", hold.Held())
				for _, path := range m.swept {
					if err := r.Raw.Delete(r.Config.Chroot+path, -1); err != nil {
						t.Errorf("Delete(%s) = %v", path, err)
					}
				}
				last := hold
				if i+1 < len(moments) {
					hold = r.Proxy.HoldNext(moments[i+1].before(r.Config.Chroot))
				}
				last.Release()
			}
			l := <-acquired
			if l == nil {
				return
			}
			r.wantHeld(l)
			recipetest.Release(r, l)
		})
	}
}

// The servers remove what was made for a line when that is used no more, to the
// last of its parents; below the chroot nothing is left of it. Those whose paths
// have parents in common do not disturb each other while it goes on.
func TestLineParentsAreNotLeftBehind(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t, testserver.WithJVMArgs("-Dznode.container.checkIntervalMs=20"))
	cfg := config(t, z.Hosts()...)
	c, raw := open(t, cfg), rawConn(t, z.Hosts())
	before, _, err := raw.Children(cfg.Chroot)
	if err != nil {
		t.Fatal(err)
	}
	gone := func(path string) func() bool {
		return func() bool {
			ok, _, err := raw.Exists(cfg.Chroot + path)
			return err == nil && !ok
		}
	}
	for range 3 {
		a, err := MustNewMutex(c, "/orders/17/items/4/lock").Acquire(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		b, err := MustNewSemaphore(c, "/orders/18/seats", 2).Acquire(bounded(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		releaseAll(t, []*Lease{b})
		until(t, "parent of one swept", gone("/orders/18"))
		if _, err := a.Check(bounded(t)); err != nil {
			t.Errorf("Check() beside it = %v, want a held lease", err)
		}
		releaseAll(t, []*Lease{a})
		until(t, "parents swept", gone("/orders"))
	}
	after, _, err := raw.Children(cfg.Chroot)
	slices.Sort(before)
	slices.Sort(after)
	if err != nil || !slices.Equal(before, after) {
		t.Errorf("below the chroot: %q, %v, want %q as before", after, err, before)
	}
}
