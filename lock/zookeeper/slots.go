package zookeeper

import (
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
)

// phase is what a slot is being used for.
type phase uint8

const (
	acquiring phase = iota // a create was sent or will be
	holding                // a lease stands for the znode
	releasing              // the znode is being removed, or what is left of a create undone
)

// slot is a session's exclusive right to send writes for one lock path. There
// is at most one per path, from before its create is sent until its znode is
// known to be gone: so no create is ever sent while an earlier create or delete
// of this session is unsettled, and a znode of this session at a path without a
// slot is an orphan.
type slot struct {
	path  string // of a znode in a line: its prefix, until the server has named it
	phase phase
	// marked says that the lock is below the marker at path. Only the attempt
	// that has the slot changes it, and then its lease does, under the lease's mu.
	marked bool
	lease  *Lease        // once holding
	freed  chan struct{} // closed when the slot is given up
	crowd  int           // callers that wait for freed
}

// znode is where the lock itself is.
func (sl *slot) znode() string {
	if sl.marked {
		return sl.path + lockChild
	}
	return sl.path
}

// claim takes the slot of a path. When it is taken it returns the one there is;
// busy is then the phase it is in.
func (s *locks) claim(path string) (mine, other *slot, busy phase, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Usable(); err != nil {
		return nil, nil, 0, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
	}
	if sl := s.slots[path]; sl != nil {
		return nil, sl, sl.phase, nil
	}
	if len(s.slots) >= s.cfg.MaxLocksPerSession {
		return nil, nil, 0, fmt.Errorf("%w: zookeeper: session has %d locks already (MaxLocksPerSession)", idem.ErrUnavailable, len(s.slots))
	}
	sl := &slot{path: path, freed: make(chan struct{})}
	s.slots[path] = sl
	return sl, nil, 0, nil
}

// free gives a slot up, its znode being gone or the session over.
func (s *locks) free(sl *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.slots, sl.path)
	s.frees++
	close(sl.freed)
}

// rename gives the slot of a znode in a line the path that the server made up.
func (s *locks) rename(sl *slot, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.slots, sl.path)
	sl.path = path
	s.slots[path] = sl
}
