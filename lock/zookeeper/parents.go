package zookeeper

import (
	"fmt"
	"path"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// parents is the number of znodes that all locks are spread over (see lockPath), and
// parentsAtOnce is how many of them one transaction makes.
//
// On an empty ensemble nearly every lock of the first thousands is the first one below its
// parent. If each lock were sent and refused, hundreds of callers would wait for thousands
// of refused transactions (BenchmarkColdStart in bench). So the first lock of a session
// starts one goroutine that makes the missing parents, those of waiting locks first. The
// other locks do not wait. In a session that finds all parents there, the first lock waits
// for one read.
const (
	parents       = 4096
	parentsAtOnce = 128
)

// parentName is the last element of the path of a lock's parent.
func parentName(i int) string { return fmt.Sprintf("%03x", i) }

// lockParents are the parents that a session has to make.
type lockParents struct {
	start sync.Once

	mu      sync.Mutex
	missing map[string]bool // by name, until they are seen; true: a lock waits for it
	changed chan struct{}   // closed and replaced when some have been seen
}

// missingParent returns nil if the parent of a lock is there, or if the lock has to make
// it. Otherwise it returns a channel that closes when the caller should ask again.
func (s *locks) missingParent(lock string) <-chan struct{} {
	p, name := &s.parents, path.Base(path.Dir(lock))
	p.start.Do(func() {
		if s.client.cfg.ParentsOnDemand {
			return
		}
		p.missing, p.changed = make(map[string]bool, parents), make(chan struct{})
		for i := range parents {
			p.missing[parentName(i)] = false
		}
		s.Further(s.parentsAhead)
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, missing := p.missing[name]; !missing {
		return nil
	}
	p.missing[name] = true
	return p.changed
}

// parentsAhead makes the missing parents of all locks. If it fails, locks make their own.
func (s *locks) parentsAhead() {
	err := s.makeParents()
	s.parents.mu.Lock()
	s.parents.missing = nil
	close(s.parents.changed)
	s.parents.mu.Unlock()
	if err != nil && s.Err() == nil && !s.client.parentsDenied.Swap(true) {
		s.Log.Warn("zookeeper: the parents of locks cannot be made ahead, each lock makes its own where it is missing", "root", s.client.cfg.rootPath(), "error", err)
	}
}

// makeParents looks again before each transaction, because other clients may make parents
// at the same time.
func (s *locks) makeParents() error {
	root := s.client.cfg.rootPath()
	for {
		there, err := s.Look(root, session.OfChildren)
		if err == nil && !there.Exists {
			err = s.EnsureParents(root + "/")
		}
		if err != nil {
			return err
		}
		var block []session.Request
		for _, name := range s.parents.next(there.Names) {
			block = append(block, session.Request{Ops: []any{s.Persistent(root+"/"+name, nil)}})
		}
		if len(block) == 0 {
			return nil
		}
		for _, r := range s.Batch(block...) { // alone, because a refusal would hold up other writes
			if r.Outcome == session.Ended || r.Outcome == session.Refused && !r.RefusedBy(zk.ErrNodeExists) {
				return r.Err
			}
		}
	}
}

// next notes parents that are there, and returns the names of some that are still missing.
func (p *lockParents) next(there []string) (block []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range there {
		delete(p.missing, name)
	}
	for _, first := range []bool{true, false} {
		for name, wanted := range p.missing { // in random order
			if wanted == first && len(block) < parentsAtOnce {
				block = append(block, name)
			}
		}
	}
	close(p.changed)
	p.changed = make(chan struct{})
	return block
}
