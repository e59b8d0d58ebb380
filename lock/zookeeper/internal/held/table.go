package held

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Client is what everything that is built on one client shares.
type Client struct {
	Keeper *session.Keeper
	Chroot string
	ACL    []zk.ACL // of every znode
	Policy RetryPolicy
	Log    *slog.Logger
	Now    leaseclock.Source
	Owner  Owner // of every znode that a lease stands for, without a nonce

	// MaxClaims bounds the claims of one session.
	MaxClaims int

	tries atomic.Uint64
}

// Owned is the data of a znode that is to be made, under a nonce that is a name for
// operators.
func (c *Client) Owned(nonce string) Owner {
	o := c.Owner
	o.Nonce, o.Try = nonce, c.Try()
	return o
}

// Try returns a name that this client never uses again.
func (c *Client) Try() string { return fmt.Sprint(c.tries.Add(1)) }

// Table returns the claims of the session if it can serve callers now, and
// idem.ErrUnavailable if not. It never waits.
func (c *Client) Table() (*Table, error) {
	s, err := c.Keeper.Usable()
	if err != nil {
		return nil, err
	}
	return s.Local().(interface{ Claims() *Table }).Claims(), nil
}

// Table has the claims of one session.
//
// The session's lock and a lease's lock may be taken while mu is held, not the other way
// round. It is never held across a call to ZooKeeper or to the logger.
type Table struct {
	*session.Session
	*Client

	Domain string // of all fences

	mu     sync.Mutex
	claims map[string]*Claim
	freed  uint64
	making map[string]*making
}

// NewTable returns the empty table of a new session.
func NewTable(c *Client, s *session.Session) *Table {
	return &Table{Session: s, Client: c, claims: make(map[string]*Claim), making: make(map[string]*making)}
}

// Claims is the table itself. It is there for types that embed a Table.
func (t *Table) Claims() *Table { return t }

// Fence is the fence of a znode.
func (t *Table) Fence(czxid int64) idem.Fence {
	return idem.Fence{Domain: t.Domain, Token: uint64(czxid)}
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

// phase is what a claim is being used for.
type phase uint8

const (
	acquiring phase = iota // a create was sent or will be
	holding                // a lease stands for the znode
	releasing              // the znode is being removed, or an abandoned create undone
)

// Claim takes the claim of a path. If there is one already, it returns that as other.
func (t *Table) Claim(path string) (mine, other *Claim, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.Usable(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
	}
	if cl := t.claims[path]; cl != nil {
		return nil, cl, nil
	}
	if len(t.claims) >= t.MaxClaims {
		return nil, nil, fmt.Errorf("%w: zookeeper: session has %d locks already (MaxLocksPerSession)", idem.ErrUnavailable, len(t.claims))
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

// Unsettled lists the claims that no lease stands for. It is for tests.
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

// Lease is the lease for the znode, or nil if there is none yet.
func (cl *Claim) Lease() *Lease {
	cl.t.mu.Lock()
	defer cl.t.mu.Unlock()
	return cl.lease
}

// Further runs work that may have to wait. If the session is over, the work ends by itself.
func (t *Table) Further(f func()) {
	if !t.Go(f) {
		go f()
	}
}

// Persistent is the create of a persistent znode.
func (c *Client) Persistent(path string, data []byte) *zk.CreateRequest {
	return &zk.CreateRequest{Path: path, Data: data, Acl: c.ACL, Flags: zk.FlagPersistent}
}

// Ephemeral is the create of an ephemeral znode.
func (c *Client) Ephemeral(path string, data []byte) *zk.CreateRequest {
	return &zk.CreateRequest{Path: path, Data: data, Acl: c.ACL, Flags: zk.FlagEphemeral}
}

// Above is the path of the parent, and "" if that is "/".
func Above(path string) string { return path[:strings.LastIndexByte(path, '/')] }

// EnsureParents makes the persistent znodes above path that are missing. It begins with
// the lowest one, because the others are nearly always there. Making a znode twice does no
// harm, so after a lost reply it does it again.
func (t *Table) EnsureParents(path string) error {
	parent := Above(path)
	if parent == "" {
		return nil
	}
	var err error
	for range MaxTries {
		if err = t.Ensure(parent); !refusedNoNode(err) {
			return err
		}
		if err := t.EnsureParents(parent); err != nil {
			return err
		}
	}
	return err
}

// EnsureParentsFor is EnsureParents for callers. It stops waiting when ctx ends.
func (t *Table) EnsureParentsFor(ctx context.Context, path string) error {
	_, err := session.Within(ctx, t.Session, func() (struct{}, error) { return struct{}{}, t.EnsureParents(path) })
	return err
}

// making is a persistent znode that is being made, for all callers that wait for it.
type making struct {
	done chan struct{} // closed when err is set
	err  error
}

// Ensure makes one persistent znode. Calls for the same one share the write, because the
// servers would refuse all but the first.
func (t *Table) Ensure(path string) error {
	t.mu.Lock()
	m := t.making[path]
	if m != nil {
		t.mu.Unlock()
		<-m.done
		return m.err
	}
	m = &making{done: make(chan struct{})}
	t.making[path] = m
	t.mu.Unlock()

	m.err = t.ensure(path)
	t.mu.Lock()
	delete(t.making, path)
	t.mu.Unlock()
	close(m.done)
	return m.err
}

func (t *Table) ensure(path string) error {
	for {
		r := t.Write(t.Persistent(path, nil))
		switch {
		case r.Outcome == session.Applied, r.RefusedBy(zk.ErrNodeExists):
			return nil
		case r.Outcome == session.Ended, r.Outcome == session.Refused:
			return fmt.Errorf("zookeeper: create %s: %w", path, r.Err)
		}
		if err := t.Retry(); err != nil {
			return err
		}
	}
}
