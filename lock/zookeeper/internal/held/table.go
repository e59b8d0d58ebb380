package held

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Table has the claims of one session.
//
// The session's lock and a lease's lock may be taken while mu is held, not the other way
// round. It is never held across a call to ZooKeeper or to the logger.
type Table struct {
	*session.Session
	*Client
	parents

	domain atomic.Pointer[string] // of new fences

	mu     sync.Mutex
	claims map[string]*Claim
	freed  uint64
}

// NewTable returns the empty table of a new session.
func NewTable(c *Client, s *session.Session) *Table {
	return &Table{
		Session: s, Client: c, claims: make(map[string]*Claim),
		parents: parents{Session: s, c: c, making: make(map[string]func() error)},
	}
}

// Table returns the claims of the session if it can serve callers now, and
// driver.ErrUnavailable if not. It never waits.
func (c *Client) Table() (*Table, error) {
	s, err := c.Keeper.Usable()
	if err != nil {
		return nil, err
	}
	return s.Local().(interface{ Claims() *Table }).Claims(), nil
}

// Claims is the table itself. It is there for types that embed a Table.
func (t *Table) Claims() *Table { return t }

// Fence is the fence of a znode.
func (t *Table) Fence(czxid int64) driver.Fence {
	return driver.Fence{Domain: t.Domain(), Token: uint64(czxid)}
}

// Domain is the lock domain of new fences.
func (t *Table) Domain() string {
	if d := t.domain.Load(); d != nil {
		return *d
	}
	return ""
}

// SetDomain changes the lock domain of new fences.
func (t *Table) SetDomain(domain string) { t.domain.Store(&domain) }

// Further runs work that may have to wait. If the session is over, the work ends by itself.
func (t *Table) Further(f func()) {
	if !t.Go(f) {
		go f()
	}
}

// Claim takes the claim of a path. If there is one already, it returns that as other. It
// fails if the session cannot serve callers now.
func (t *Table) Claim(path string) (mine, other *Claim, err error) {
	if err := t.Usable(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	return t.reserve(path, t.MaxClaims)
}

// Reserve is Claim for work that waits for the connection by itself and bounds its claims by
// itself. So a session that has all its locks can do such work.
func (t *Table) Reserve(path string) (mine, other *Claim) {
	mine, other, _ = t.reserve(path, math.MaxInt)
	return mine, other
}

func (t *Table) reserve(path string, most int) (mine, other *Claim, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if cl := t.claims[path]; cl != nil {
		return nil, cl, nil
	}
	if len(t.claims) >= most {
		return nil, nil, fmt.Errorf("%w: zookeeper: session has %d locks already (MaxLocksPerSession)", driver.ErrUnavailable, len(t.claims))
	}
	return t.claim(path), nil, nil
}

// claim needs mu.
func (t *Table) claim(path string) *Claim {
	cl := &Claim{t: t, path: path, freed: make(chan struct{})}
	t.claims[path] = cl
	return cl
}

// Succeed takes the claim of a second path for the holder of a lease, which is about to
// give up the first one. So no limit is checked. It fails if the lease is over, and returns
// nil without an error if the path is claimed.
func (t *Table) Succeed(l *Lease, path string) (*Claim, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if over := l.Over(); over != nil {
		return nil, over
	}
	if t.claims[path] != nil {
		return nil, nil
	}
	return t.claim(path), nil
}

// Find returns the claim of a path, or nil.
func (t *Table) Find(path string) *Claim {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.claims[path]
}

// Freed counts the claims that were given up so far.
func (t *Table) Freed() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.freed
}

// Unsettled lists the claims without a lease. It is for tests.
func (t *Table) Unsettled() (paths []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for path, cl := range t.claims {
		if cl.phase != holding {
			paths = append(paths, path)
		}
	}
	return paths
}

// Leases counts the leases for znodes below a path. It is for tests.
func (t *Table) Leases(below string) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for path, cl := range t.claims {
		if cl.phase == holding && strings.HasPrefix(path, below+"/") {
			n++
		}
	}
	return n
}

// Claim is a session's exclusive right to send writes for one path. There is at most one
// for each path. It lasts from before the first create is sent until the znode is known to
// be gone. So the session never sends a create while one of its earlier writes at that
// path is unsettled, and a znode of the session without a claim is an orphan.
type Claim struct {
	t     *Table
	path  string
	phase phase // guarded by Table.mu, like lease and path
	lease *Lease
	freed chan struct{}
}

// phase is the present use of a claim.
type phase uint8

const (
	acquiring phase = iota // a create was sent or will be
	holding                // a lease stands for the znode
	releasing              // the znode is being removed, or an abandoned create undone
)

// Path is the claimed path.
func (cl *Claim) Path() string {
	cl.t.mu.Lock()
	defer cl.t.mu.Unlock()
	return cl.path
}

// Rename moves the claim to the path that the server has given the znode.
func (cl *Claim) Rename(path string) {
	t := cl.t
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.claims, cl.path)
	cl.path = path
	t.claims[path] = cl
}

// Free gives the claim up. The znode is gone, or the session is over.
func (cl *Claim) Free() {
	t := cl.t
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.claims, cl.path)
	t.freed++
	close(cl.freed)
}

// Freed is closed when the claim has been given up.
func (cl *Claim) Freed() <-chan struct{} { return cl.freed }

// Releasing reports whether the znode is being removed.
func (cl *Claim) Releasing() bool {
	cl.t.mu.Lock()
	defer cl.t.mu.Unlock()
	return cl.phase == releasing
}

// Lease is the lease for the znode, or nil while the znode is being made.
func (cl *Claim) Lease() *Lease {
	cl.t.mu.Lock()
	defer cl.t.mu.Unlock()
	return cl.lease
}
