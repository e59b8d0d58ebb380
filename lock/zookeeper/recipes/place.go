package recipes

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Lease is a lock, or permits, held through a session. It is safe for concurrent use.
//
// The token of its Fence is the czxid of its place in line times 128, plus the number of the
// place within its transaction. Do not compare it with the tokens of a [zookeeper.Locker].
// After [RWMutex.Downgrade] it is the writer's.
//
// It has more than fifteen methods because it is the handle of its place while it waits
// (turn.go, handover.go) and the caller's lease afterwards (revoke.go).
type Lease struct {
	held  *held.Lease
	place *place
}

var _ driver.Lease = (*Lease)(nil)

// Fence implements [driver.Lease].
func (l *Lease) Fence() driver.Fence { return l.held.Fence() }

// Done implements [driver.Lease].
func (l *Lease) Done() <-chan struct{} { return l.held.Done() }

// Err implements [driver.Lease]. It reads the lease clock, so it tells of a loss even when Done is
// late, after the machine was suspended.
func (l *Lease) Err() error { return l.held.Err() }

// Check implements [driver.Lease]. It always reads the znode, so it notices one that was deleted by
// hand. While the connection is down it waits for another one, until ctx ends or the lease is over.
func (l *Lease) Check(ctx context.Context) (time.Duration, error) { return l.held.Check(ctx) }

// Release implements [driver.Lease]. The error wraps driver.ErrUnavailable if ctx ended first, or if the
// znode stays until the session is over.
func (l *Lease) Release(ctx context.Context) error { return l.held.Release(ctx) }

// ReleaseInBackground implements [driver.Lease]. [zookeeper.Client.Close] waits for it.
func (l *Lease) ReleaseInBackground() { l.held.ReleaseInBackground() }

// place is a znode in a line. No other znode ever has its name, so a delete need not read its
// owner first.
type place struct {
	lineup        *lineup
	prefix        string // <role>-<unique>
	data          []byte
	line.Position      // once made
	founder       bool // the parent was made for it

	mu       sync.Mutex
	head     bool          // its turn came when no place was before it
	alone    bool          // no place was seen behind it then
	heir     *Lease        // waits right behind it, or has inherited the lock
	revoked  chan struct{} // nil before the first wish
	asked    bool          // to let go, and revoked is closed
	attended bool          // its holder watches the znode
}

// is reports whether q is this place.
func (p *place) is(q line.Position) bool { return q.Name == p.Name }

func (p *place) path() string { return p.lineup.path + "/" + p.Name }

// enqueue takes a place at the end of the line. The lease has the place, but not yet the lock.
func (ln *lineup) enqueue(ctx context.Context, t *held.Table, role string, data []byte) (*Lease, error) {
	p := &place{lineup: ln, prefix: line.Prefix(role, line.Unique()), data: data}
	cl, _, err := t.Claim(ln.path + "/" + p.prefix)
	if err != nil {
		return nil, err
	}
	fence := func(czxid int64) driver.Fence { return p.Fence(t, czxid) }
	l, err := cl.Acquire(ctx, held.Znode{Make: p.create, Delete: p.deletion, Tag: p, Fence: fence})
	if err != nil {
		return nil, err
	}
	return &Lease{l, p}, nil
}

// request is the create of the znode. The servers add the sequence number. Callers of one
// client who ask at the same moment share a transaction, so their places are side by side.
func (p *place) request(t *held.Table) session.Request {
	create := t.Client.Ephemeral("", p.data)
	create.Flags |= zk.FlagSequence
	return session.Request{Ops: []any{create}, Group: p.lineup.path, Number: func(n int) {
		create.Path = p.lineup.path + "/" + line.Numbered(p.prefix, n)
	}}
}

// create makes the znode, and tries until the outcome is known.
func (p *place) create(a *held.Attempt) (path string, czxid int64, err error) {
	fail := func(err error) (string, int64, error) {
		return "", 0, fmt.Errorf("%w: acquire: %w", driver.ErrUnavailable, err)
	}
	var r session.Result
	for range held.MaxTries {
		if a.Abandoned() {
			return "", 0, held.ErrAbandoned
		}
		r = a.Table.Session.Writes.DoRequest(p.request(a.Table))
		switch {
		case r.Outcome == session.Applied:
			return r.Created[0], r.Zxid, p.named(a, r.Created[0])
		case r.RefusedBy(zk.ErrNoNode):
			if err := line.Ensure(a.Table, p.lineup.path, p.lineup.data); err != nil {
				return fail(err)
			}
			p.founder = true
			continue
		case r.Outcome != session.Unknown:
			return fail(r.Err)
		}
		n, err := p.find(a)
		if err != nil {
			return fail(err)
		}
		if n.Exists {
			return p.path(), n.Czxid, nil
		}
	}
	return fail(fmt.Errorf("no certain answer %d times, the last: %w", held.MaxTries, r.Err))
}

// named notes the znode's name, as the servers have completed it.
func (p *place) named(a *held.Attempt, path string) error {
	pos, ok := line.Parse(path[strings.LastIndexByte(path, '/')+1:])
	if !ok || !strings.HasPrefix(pos.Name, p.prefix) {
		return fmt.Errorf("zookeeper: created %s, which is not %s and a number", path, p.prefix)
	}
	p.Position = pos
	a.Claim().Rename(path)
	return nil
}

// find looks for the znode after the reply to its create was lost.
func (p *place) find(a *held.Attempt) (session.Decided, error) {
	all, err := a.Table.Session.Reads.Decide(p.lineup.path, session.OfChildren)
	if err != nil {
		return session.Decided{}, err
	}
	for _, name := range all.Names {
		if strings.HasPrefix(name, p.prefix) {
			n, err := a.Table.Session.Reads.Decide(p.lineup.path+"/"+name, session.OfNode)
			if err != nil || !n.Exists {
				return session.Decided{}, err
			}
			return n, p.named(a, p.lineup.path+"/"+name)
		}
	}
	return session.Decided{}, nil
}

// deletion returns the deletes of the place. They include the parent if it was made for this
// place, no place was seen behind this one, and the line has served no other caller. So a line
// in repeated use keeps its parent. If there is an heir and the znode carries a request to let
// go, the delete fails, and the heir gets the request.
func (p *place) deletion(_ *held.Lease, refused *session.Result) []any {
	p.mu.Lock()
	version := p.deletable()
	last := p.founder && p.alone && p.lineup.uses.Load() <= 1
	p.mu.Unlock()
	switch {
	case refused == nil:
		ops := []any{&zk.DeleteRequest{Path: p.path(), Version: version}}
		if last {
			ops = append(ops, &zk.DeleteRequest{Path: p.lineup.path, Version: -1})
		}
		return ops
	case refused.RefusedAt(0, zk.ErrBadVersion):
		p.passOn()
		return []any{&zk.DeleteRequest{Path: p.path(), Version: -1}}
	case refused.Op == 1: // the parent stays
		return []any{&zk.DeleteRequest{Path: p.path(), Version: version}}
	}
	return nil
}
