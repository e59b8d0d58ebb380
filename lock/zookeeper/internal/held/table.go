package held

import (
	"fmt"
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
	Session *session.Session
	Client  *Client
	Parents Parents

	domain atomic.Pointer[string] // of new fences

	mu     sync.Mutex
	claims map[string]*Claim
	freed  uint64
}

// NewTable returns the empty table of a new session.
func NewTable(c *Client, s *session.Session) *Table {
	return &Table{
		Session: s, Client: c, claims: make(map[string]*Claim),
		Parents: Parents{session: s, c: c, making: make(map[string]func() error)},
	}
}

// Table returns the claims of the session if it can serve callers now, and
// driver.ErrUnavailable if not. It never waits.
func (c *Client) Table() (*Table, error) {
	s, err := c.Keeper.Usable()
	if err != nil {
		return nil, err
	}
	return TableOf(s), nil
}

// TableOf returns the claims of a session. Package zookeeper keeps them with the session.
func TableOf(s *session.Session) *Table { return s.Local().(interface{ Claims() *Table }).Claims() }

// Fence is the fence of a znode.
func (t *Table) Fence(czxid int64) driver.Fence {
	return driver.Fence{Domain: t.Domain(), Token: uint64(czxid)}
}

// Domain is the lock domain of new fences.
func (t *Table) Domain() string { return *t.domain.Load() }

// SetDomain changes the lock domain of new fences. A table gets one before its first lease.
func (t *Table) SetDomain(domain string) { t.domain.Store(&domain) }

// Further runs work that may have to wait. If the session is over, the work ends by itself.
func (t *Table) Further(f func()) {
	if !t.Session.Status.Go(f) {
		go f()
	}
}

// Claim takes the claim of a path. If there is one already, it returns that as other. It
// fails if the session cannot serve callers now.
func (t *Table) Claim(path string) (mine, other *Claim, err error) {
	if err := t.Session.Status.Usable(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	return t.reserve(path, t.Client.MaxClaims)
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

// Find returns the claim of a path, or nil.
func (t *Table) Find(path string) *Claim {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.claims[path]
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
