package zookeeper

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// parents is the number of znodes that all locks are spread over (see lockPath), and
// parentsAtOnce is how many of them one transaction makes.
//
// On an empty ensemble nearly every lock of the first thousands is the first one below its
// parent. If each lock made its own parent, hundreds of callers would wait for thousands
// of refused transactions (BenchmarkColdStart in bench). So the first lock of a session
// starts one goroutine that makes all missing parents, and locks wait for that. A session
// that finds all parents there costs its first lock one read.
const (
	parents       = 4096
	parentsAtOnce = 128
)

// parentName is the last element of the path of a lock's parent.
func parentName(i int) string { return fmt.Sprintf("%03x", i) }

// lockParents is one session's attempt to make the parents of all locks.
type lockParents struct {
	start sync.Once
	tried chan struct{} // closed when the attempt has ended
}

// parentsTried returns a channel that closes when the session has tried to make the
// parents of all locks. The first call starts that. A parent that is missing all the same
// is made by the lock below it.
func (s *locks) parentsTried() <-chan struct{} {
	s.parents.start.Do(func() {
		if s.client.cfg.ParentsOnDemand {
			close(s.parents.tried)
			return
		}
		s.Further(func() {
			defer close(s.parents.tried)
			err := s.makeParents()
			if err != nil && s.Err() == nil && !s.client.parentsDenied.Swap(true) {
				s.Log.Warn("zookeeper: the parents of locks cannot be made ahead, each lock makes its own where it is missing", "root", s.client.cfg.rootPath(), "error", err)
			}
		})
	})
	return s.parents.tried
}

// makeParents makes the missing parents of all locks, some of them in each transaction. It
// looks again before each transaction and begins anywhere in the list, because other
// clients may do the same at that moment.
func (s *locks) makeParents() error {
	root := s.client.cfg.rootPath()
	for range 8 * parents / parentsAtOnce {
		there, err := s.Look(root, session.OfChildren)
		if err == nil && !there.Exists {
			err = s.EnsureParents(root + "/")
		}
		if err != nil {
			return err
		}
		slices.Sort(there.Names)
		var missing []session.Request
		for i := range parents {
			if _, found := slices.BinarySearch(there.Names, parentName(i)); !found {
				missing = append(missing, session.Request{Ops: []any{s.Persistent(root+"/"+parentName(i), nil)}})
			}
		}
		if len(missing) == 0 {
			return nil
		}
		if spare := len(missing) - parentsAtOnce; spare > 0 {
			missing = missing[rand.N(spare+1):][:parentsAtOnce]
		}
		for _, r := range s.Batch(missing...) { // alone, because a refusal would hold up other writes
			if r.Outcome == session.Ended || r.Outcome == session.Refused && !r.RefusedBy(zk.ErrNodeExists) && !r.RefusedBy(zk.ErrNoNode) {
				return r.Err
			}
		}
	}
	return nil
}
