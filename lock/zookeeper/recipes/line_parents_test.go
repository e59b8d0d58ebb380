package recipes

import (
	"encoding/binary"
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
		"grandparent, twice":     {{container("/a/b"), []string{"/a"}}, {container("/a/b"), []string{"/a"}}},
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
