package recipes

import (
	"context"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// linePath is that of the lock or semaphore that a rig's clients share.
const linePath = "/line"

// places is the line as the server has it.
func (r *rig) places() []line.Position {
	r.Helper()
	names, _, _ := r.Raw.Children(r.Config.Chroot + linePath) // no such znode: nobody
	return line.Sort(names)
}

// awaitPlaces waits until so many are in line.
func (r *rig) awaitPlaces(n int) {
	r.Helper()
	until(r, "places in line", func() bool { return len(r.places()) == n })
}

// onLine matches the writes that name a place in the rig's line.
func (r *rig) onLine() testserver.Match {
	return testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.Config.Chroot+linePath+"/"))
}

// kill ends the session of the client behind the proxy, from elsewhere.
func (r *rig) kill() {
	r.Helper()
	s := sessionOf(r.Client)
	if s == nil {
		return // it has not recovered from the last time
	}
	until(r, "session killed", func() bool {
		// The client may be back sooner than the killer has done its work.
		err := testserver.KillSession(testserver.SharedZooKeeper(r)[0], s.Session.Status.ID(), password(r.Proxy))
		return err == nil || s.Session.Status.Err() != nil
	})
}

// removeLine deletes a line behind anyChange's back, parent and all, at once.
func (r *rig) removeLine() {
	r.Helper()
	path := r.Config.Chroot + linePath
	var ops []any
	for _, p := range r.places() {
		ops = append(ops, &zk.DeleteRequest{Path: path + "/" + p.Name, Version: -1})
	}
	if _, err := r.Raw.Multi(append(ops, &zk.DeleteRequest{Path: path, Version: -1})...); err != nil {
		r.Fatalf("delete %s: %v", linePath, err)
	}
}

// wantClean says that nothing is left in line, nor under way.
func (r *rig) wantClean(clients ...*zookeeper.Client) {
	r.Helper()
	r.awaitPlaces(0)
	for _, c := range clients {
		recipetest.Idle(r, c)
	}
}

// ask is a call for a lock that waits.
type ask func(ctx context.Context) (*Lease, error)

// semAsk is a call for n of a semaphore's permits.
func semAsk(c *zookeeper.Client, permits, n int) ask {
	return func(ctx context.Context) (*Lease, error) {
		return MustNewSemaphore(c, linePath, permits).Acquire(ctx, n)
	}
}

// caller is somebody who has asked for a lock and waits for it.
type caller struct {
	*rig
	answered chan struct{} // closed when lease and err are set
	lease    *Lease
	err      error
}

// queue asks for a lock, and returns when that has its place in line.
func (r *rig) queue(ctx context.Context, f ask) *caller {
	r.Helper()
	n := len(r.places())
	c := r.call(ctx, f)
	r.awaitPlaces(n + 1)
	return c
}

// watching waits until a client has a watch in line: one who waits there is
// past its look, as long as those before it are another client's.
func (r *rig) watching(c *zookeeper.Client) {
	r.Helper()
	s := sessionOf(c)
	until(r, "a watch", func() bool {
		watched := s.Session.Watches.Watched()
		w := watched[session.WatchKey{Path: r.Config.Chroot + linePath, Kind: session.OnChildren}]
		if w != nil && slices.ContainsFunc(line.Sort(namesOf(w)), func(p line.Position) bool {
			cl := s.Find(r.Config.Chroot + linePath + "/" + p.Name)
			return cl != nil && cl.Lease() != nil && !cl.Releasing()
		}) {
			return true
		}
		for key := range watched {
			if strings.HasPrefix(key.Path, r.Config.Chroot+linePath+"/") {
				return true
			}
		}
		return false
	})
}

// namesOf is what a watch for the children of a line has seen, if it has yet.
func namesOf(w *session.Watch) []string {
	select {
	case <-w.Armed():
		n, _ := w.Found()
		return n.Names
	default:
		return nil
	}
}

func (r *rig) call(ctx context.Context, f ask) *caller {
	c := &caller{rig: r, answered: make(chan struct{})}
	go func() {
		defer close(c.answered)
		c.lease, c.err = f(ctx)
	}()
	return c
}

// granted waits until the caller has the lock.
func (c *caller) granted() *Lease {
	c.Helper()
	await(c, "lock granted", c.answered)
	if c.err != nil {
		c.Fatalf("acquire = %v, want a lease", c.err)
	}
	return c.lease
}

// wantWaiting says that the caller has no answer yet.
func (c *caller) wantWaiting() {
	c.Helper()
	select {
	case <-c.answered:
		c.Errorf("acquire = %v, %v; want it to wait", c.lease, c.err)
	default:
	}
}
