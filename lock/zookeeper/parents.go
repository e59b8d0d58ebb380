package zookeeper

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"

	"github.com/go-zookeeper/zk"

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

// above is the path of the parent, "" where that is "/".
func above(path string) string { return path[:strings.LastIndexByte(path, '/')] }

// lockParents is what a session knows of the parents of locks. The session's mu
// guards what is not a channel.
type lockParents struct {
	asked  bool
	looked chan struct{}      // closed when the first look is over, and err is set
	err    error              // why it showed nothing
	absent map[string]bool    // those that were missing and have not been made since
	making map[string]*making // persistent znodes on their way, these and others
}

func newLockParents() lockParents {
	return lockParents{looked: make(chan struct{}), making: make(map[string]*making)}
}

// making is a persistent znode that is being made, for all who wait for it.
type making struct {
	done chan struct{} // closed when err is set
	err  error
}

// errNotMade says that the block of a parent was not made.
var errNotMade = errors.New("zookeeper: not made ahead")

// parentAbsent says whether the parent of a lock is known to be missing.
func (s *locks) parentAbsent(lock string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parents.absent[above(lock)]
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
		_ = s.ensureParents(lock)
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
	return s.ensureParents(lock)
}

// ensureParents makes the persistent znodes above path that are missing. It begins
// with the lowest one, because the others are nearly always there. Making one twice
// does no harm, so a lost reply is answered by doing it again.
func (s *locks) ensureParents(path string) error {
	parent := above(path)
	if parent == "" {
		return nil
	}
	var err error
	for range maxTries {
		if err = s.ensure(parent); !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		if err := s.ensureParents(parent); err != nil {
			return err
		}
	}
	return err
}

// ensure makes one persistent znode. Calls for the same one share the write, of which
// all but the first would be refused.
func (s *locks) ensure(path string) error {
	for {
		mine, m := s.beginMaking(path)
		if !mine {
			<-m.done
			if errors.Is(m.err, errNotMade) {
				continue
			}
			return m.err
		}
		err := s.makePersistent(path)
		s.endMaking(err, path)
		return err
	}
}

// beginMaking is true for the one caller that makes the znode and calls endMaking.
func (s *locks) beginMaking(path string) (mine bool, m *making) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.parents.making[path]; m != nil {
		return false, m
	}
	m = &making{done: make(chan struct{})}
	s.parents.making[path] = m
	return true, m
}

func (s *locks) endMaking(err error, paths ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range paths {
		m := s.parents.making[path]
		delete(s.parents.making, path)
		if err == nil {
			delete(s.parents.absent, path)
		}
		m.err = err
		close(m.done)
	}
}

func (s *locks) makePersistent(path string) error {
	for {
		r := s.Write(s.persistent(path))
		switch {
		case r.Outcome == session.Applied, r.RefusedBy(zk.ErrNodeExists):
			return nil
		case r.Outcome == session.Ended, r.Outcome == session.Refused:
			return fmt.Errorf("zookeeper: create %s: %w", path, r.Err)
		}
		if err := s.Retry(); err != nil {
			return err
		}
	}
}

func (s *locks) persistent(path string) *zk.CreateRequest {
	return &zk.CreateRequest{Path: path, Acl: s.cfg.ACL, Flags: zk.FlagPersistent}
}

// lookAtParents has the session look which parents of locks are missing, in the
// background. It is true for the session's first lock only.
func (s *locks) lookAtParents() (first bool) {
	s.mu.Lock()
	first = !s.parents.asked
	s.parents.asked = true
	s.mu.Unlock()
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
	if s.cfg.ParentsOnDemand {
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
			s.log.Warn("zookeeper: the parents of locks cannot be made ahead, each lock makes its own where it is missing", "root", s.cfg.Chroot+s.cfg.Root, "error", err)
		})
	})
}

// noteAbsent lists the parents that there are. What it notes is a hint: one that has
// come or gone since costs a refusal.
func (s *locks) noteAbsent() error {
	root := s.cfg.Chroot + s.cfg.Root
	list, err := s.Look(root, session.OfChildren)
	if err != nil {
		return err
	}
	there := make(map[string]bool, len(list.Names))
	for _, name := range list.Names {
		there[root+"/"+name] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parents.absent == nil {
		s.parents.absent = make(map[string]bool)
		for i := range parents {
			s.parents.absent[root+"/"+parentName(i)] = true
		}
	}
	maps.DeleteFunc(s.parents.absent, func(path string, _ bool) bool { return there[path] })
	return nil
}

// makeParents makes the missing parents of all locks. Other clients may do the same,
// so it takes the blocks in no order, and looks again where one was refused.
func (s *locks) makeParents() error {
	for range 8 * parents / parentsAtOnce { // what is left then is made on demand
		block := s.beginBlock()
		if len(block) == 0 {
			return nil
		}
		var ops []any
		for _, path := range block {
			ops = append(ops, s.persistent(path))
		}
		r := s.Batch(session.Request{Ops: ops})[0] // alone: in company it would have others refused
		if r.Outcome == session.Applied {
			s.endMaking(nil, block...)
			continue
		}
		s.endMaking(errNotMade, block...)
		switch {
		case r.Outcome == session.Ended:
			return r.Err
		case r.Outcome == session.Refused && errors.Is(r.Err, zk.ErrNoNode):
			if err := s.ensureParents(block[0]); err != nil {
				return err
			}
		case r.Outcome == session.Refused && !errors.Is(r.Err, zk.ErrNodeExists):
			return r.Err
		}
		if err := s.Retry(); err != nil {
			return err
		}
		if err := s.noteAbsent(); err != nil {
			return err
		}
	}
	return nil
}

// beginBlock returns the missing parents of a block, but those that are being made
// already. The caller makes them.
func (s *locks) beginBlock() (block []string) {
	root := s.cfg.Chroot + s.cfg.Root
	for _, n := range rand.Perm(parents / parentsAtOnce) {
		for i := range parentsAtOnce {
			path := root + "/" + parentName(n*parentsAtOnce+i)
			if !s.parentAbsent(path + "/x") {
				continue
			}
			if mine, _ := s.beginMaking(path); mine {
				block = append(block, path)
			}
		}
		if len(block) > 0 {
			return block
		}
	}
	return nil
}
