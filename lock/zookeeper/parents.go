package zookeeper

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// parents is how many parents all locks are spread over (see lockPath), and
// parentsAtOnce how many of them one transaction makes ahead.
//
// On an empty ensemble nearly every lock for the first thousands is the first below
// its parent. To send it would have it refused, and whatever shares its Multi sent
// again. So after its first lock a session looks once which parents are missing, and
// makes them in the background, a block in each transaction. A lock that comes before
// that makes its own parent first, in the company of others. The locks that were sent
// before the session had looked are refused together. Without all this 256 callers
// were refused for want of time on an ensemble that served thousands a second later
// (BenchmarkColdStart in bench).
const (
	parents       = 4096
	parentsAtOnce = 128
)

// parentName is the last element of the path of a lock's parent.
func parentName(i int) string { return fmt.Sprintf("%03x", i) }

// lockParents is what a session knows of the parents of locks. mu guards what is not a
// channel.
type lockParents struct {
	mu     sync.Mutex
	asked  bool
	looked chan struct{}   // closed when the first look is over, and err is set
	err    error           // why it showed nothing
	absent map[string]bool // the parents that were missing and have not been made since
}

// parentAbsent says whether the parent of a lock is known to be missing.
func (s *locks) parentAbsent(lock string) bool {
	s.parents.mu.Lock()
	defer s.parents.mu.Unlock()
	return s.parents.absent[held.Above(lock)]
}

// lookedAtParents says whether the session has looked which parents there are.
func (s *locks) lookedAtParents() bool {
	select {
	case <-s.parents.looked:
		return true
	default:
		return false
	}
}

// parentFor makes the parent of a lock if it was missing when the session looked.
// Where that fails, the lock's own create tells why: an administrator may have made
// a parent meanwhile that this client may use and not make.
func (s *locks) parentFor(lock string) {
	if s.parentAbsent(lock) {
		_ = s.makeParent(lock)
	}
}

// parentAfter makes the parent of a lock that was refused for want of it.
func (s *locks) parentAfter(refusal error, lock string) error {
	if errors.Is(refusal, session.ErrMaybeNoParent) {
		select {
		case <-s.parents.looked:
		case <-s.Over():
			return s.Err()
		}
		s.parentFor(lock)
		return nil
	}
	return s.makeParent(lock)
}

func (s *locks) makeParent(lock string) error {
	err := s.EnsureParents(lock)
	if err == nil {
		s.parentMade(held.Above(lock))
	}
	return err
}

// lookAtParents has the session look which parents of locks are missing, in the
// background. It is true for the session's first lock only.
func (s *locks) lookAtParents() (first bool) {
	s.parents.mu.Lock()
	first = !s.parents.asked
	s.parents.asked = true
	s.parents.mu.Unlock()
	if first {
		s.Go(func() {
			s.parents.err = s.noteAbsent()
			close(s.parents.looked)
		})
	}
	return first
}

// parentsAhead has the missing parents made in the background. It is called when the
// session's first lock is there, or was refused, and does not delay that.
func (s *locks) parentsAhead() {
	if s.client.cfg.ParentsOnDemand {
		return
	}
	s.Go(func() {
		<-s.parents.looked
		err := s.parents.err
		if err == nil {
			err = s.makeParents()
		}
		if err == nil || s.Err() != nil { // the next session tries again
			return
		}
		s.client.parentsDenied.Do(func() {
			s.Log.Warn("zookeeper: the parents of locks cannot be made ahead, each lock makes its own where it is missing", "root", s.root(), "error", err)
		})
	})
}

// noteAbsent lists the parents that there are. What it notes is a hint: one that has
// come or gone since costs a refusal.
func (s *locks) noteAbsent() error {
	root := s.root()
	list, err := s.Look(root, session.OfChildren)
	if err != nil {
		return err
	}
	there := make(map[string]bool, len(list.Names))
	for _, name := range list.Names {
		there[root+"/"+name] = true
	}
	s.parents.mu.Lock()
	defer s.parents.mu.Unlock()
	if s.parents.absent == nil {
		s.parents.absent = make(map[string]bool)
		for i := range parents {
			s.parents.absent[root+"/"+parentName(i)] = true
		}
	}
	maps.DeleteFunc(s.parents.absent, func(path string, _ bool) bool { return there[path] })
	return nil
}

// makeParents makes the missing parents of all locks, a block in each transaction. Other
// clients may do the same, so it takes the blocks in no order.
func (s *locks) makeParents() error {
	for range 8 * parents / parentsAtOnce { // what is left then is made on demand
		block := s.absentBlock()
		if len(block) == 0 {
			return nil
		}
		reqs := make([]session.Request, len(block))
		for i, path := range block {
			reqs[i].Ops = []any{s.Persistent(path, nil)}
		}
		for i, r := range s.Batch(reqs...) { // alone: in company it would have others refused
			switch {
			case r.Outcome == session.Applied, r.RefusedBy(zk.ErrNodeExists):
				s.parentMade(block[i])
			case r.RefusedBy(zk.ErrNoNode):
				if err := s.EnsureParents(block[i]); err != nil {
					return err
				}
			case r.Outcome == session.Ended, r.Outcome == session.Refused:
				return r.Err
			}
		}
		if err := s.Settled(); err != nil {
			return err
		}
	}
	return nil
}

// absentBlock returns the missing parents of a block.
func (s *locks) absentBlock() (block []string) {
	s.parents.mu.Lock()
	defer s.parents.mu.Unlock()
	for _, n := range rand.Perm(parents / parentsAtOnce) {
		for i := range parentsAtOnce {
			if path := s.root() + "/" + parentName(n*parentsAtOnce+i); s.parents.absent[path] {
				block = append(block, path)
			}
		}
		if len(block) > 0 {
			return block
		}
	}
	return nil
}

// root is the parent of all parents.
func (s *locks) root() string { return s.client.cfg.Chroot + s.client.cfg.Root }

func (s *locks) parentMade(path string) {
	s.parents.mu.Lock()
	defer s.parents.mu.Unlock()
	delete(s.parents.absent, path)
}
