package held

import (
	"math"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// The recipes and the queue handle their znodes by the methods of this file. The lock of a key needs
// none of them.

// Tag is Znode.Tag.
func (l *Lease) Tag() any { return l.znode.Tag }

// Table has the claims of the lease's session.
func (l *Lease) Table() *Table { return l.t }

// Is reports whether n is the znode of the lease.
func (l *Lease) Is(n session.Decided) bool {
	_, czxid := l.Where()
	return n.Exists && n.Czxid == czxid
}

// OnEnd has f called when the lease ends, with the value of Err at that time, before
// anything else can happen. If the lease has ended, f is called at once. The lease's and
// the session's locks are held during the call, so f must not wait for anything and must
// not use either of them. forget takes the call back.
func (l *Lease) OnEnd(f func(error)) (forget func()) { return l.ending.onEnd(f) }

// Gone is closed when the znode is known to be gone, or the session is over.
func (l *Lease) Gone() <-chan struct{} { return l.gone }

// Take ends the lease as Release does, but leaves the removal of the znode to the caller.
// The caller calls removed once the znode is gone or the session is over. removed is nil
// if the lease was over already.
func (l *Lease) Take() (removed func(error)) {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	if l.claim.phase != holding || !l.finish(nil) {
		return nil
	}
	l.claim.phase = releasing
	l.t.Client.Keeper.Background.Add()
	return l.removed
}

// Reserve is Claim for work that waits for the connection by itself and bounds its claims by
// itself. So a session that has all its locks can do such work.
func (t *Table) Reserve(path string) (mine, other *Claim) {
	mine, other, _ = t.reserve(path, math.MaxInt)
	return mine, other
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

// Freed counts the claims that were given up so far.
func (t *Table) Freed() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.freed
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

// Lease is the lease for the znode, or nil while the znode is being made.
func (cl *Claim) Lease() *Lease {
	cl.t.mu.Lock()
	defer cl.t.mu.Unlock()
	return cl.lease
}

// Unsettled lists the claims without a lease. It is for tests. A claim that is never given up has no
// other effect before the session has no claims left (MaxClaims).
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
