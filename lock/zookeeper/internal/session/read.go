package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Node is the result of a read. It comes as a [Hint] or as [Decided].
type Node struct {
	Exists  bool
	Data    []byte
	Names   []string // of the children, if the read asked for them
	Czxid   int64
	Session int64 // of an ephemeral znode, otherwise 0
	Version int32 // of the data
	Mtime   int64 // of the data, in ms since 1970 by the clock of the leader at that time

	Children int32 // how many
}

// Hint is the result of a read that may show the past. The answering server may be stale,
// even older than an earlier answer to this session. A hint says where to look and when to
// look again. Never delete or give up anything because of a hint, and never take a znode
// for vanished.
type Hint struct{ Node }

// Decided is the result of a deciding read. It shows every write acknowledged to this
// session before the read was sent, and every write before those.
//
// There are two reasons. The read is sent over a confirmed connection. A pinned write was
// acknowledged over it, and the server acknowledges a write when it has applied it and all
// before it. And the answer counts only if the connection is still the same one when it
// arrives. The client library may otherwise send queued requests over the next connection,
// to a stale server.
//
// So a deciding read also settles a write with a lost reply. The connection of that write
// is gone. The server had bound the session to a later connection before it acknowledged a
// write there. All earlier requests of the session have then been applied or never will
// be. If the connection is still the same, the server answers the session's requests in
// order.
type Decided struct{ Node }

// Question is a read as the client library takes it.
type Question func(c *zk.Conn, path string) (Node, error)

// OfNode reads a znode and its data.
func OfNode(c *zk.Conn, path string) (Node, error) {
	data, stat, err := c.Get(path)
	return found(path, data, nil, stat, err)
}

// OfChildren reads a znode and the names of its children.
func OfChildren(c *zk.Conn, path string) (Node, error) {
	names, stat, err := c.Children(path)
	return found(path, nil, names, stat, err)
}

// OfACL returns a question for the ACL of a znode, which it stores in acl.
func OfACL(acl *[]zk.ACL) Question {
	return func(c *zk.Conn, path string) (Node, error) {
		list, stat, err := c.GetACL(path)
		*acl = list
		return found(path, nil, nil, stat, err)
	}
}

// The following leave a watch if they find a znode. ofExistsW leaves one in any case. The
// event comes to watches.onEvent.

func ofNodeW(c *zk.Conn, path string) (Node, error) {
	data, stat, _, err := c.GetW(path)
	return found(path, data, nil, stat, err)
}

func ofChildrenW(c *zk.Conn, path string) (Node, error) {
	names, stat, _, err := c.ChildrenW(path)
	return found(path, nil, names, stat, err)
}

func ofExistsW(c *zk.Conn, path string) (Node, error) {
	there, stat, _, err := c.ExistsW(path)
	if err == nil && !there {
		return Node{}, nil
	}
	return found(path, nil, nil, stat, err)
}

// found makes a Node of the library's answer. A missing znode is no error.
func found(path string, data []byte, names []string, stat *zk.Stat, err error) (Node, error) {
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return Node{}, nil
	case err != nil:
		return Node{}, fmt.Errorf("zookeeper: read %s: %w", path, notPermittedAt(path, err))
	}
	return Node{
		Exists: true, Data: data, Names: names, Czxid: stat.Czxid, Session: stat.EphemeralOwner,
		Version: stat.Version, Mtime: stat.Mtime, Children: stat.NumChildren,
	}, nil
}

// errMoved refuses the answer to a deciding read over another connection.
var errMoved = errors.New("zookeeper: the connection was lost before a deciding read was answered")

// Reads makes the reads of a session.
type Reads struct {
	status   *Status
	requests *requests
	slots    chan struct{} // semaphore, so that writes need not wait for many reads
}

// ask makes a read, once. A deciding read needs a confirmed connection, and its answer
// counts only over that.
func (r *Reads) ask(path string, q Question, deciding bool) (Node, error) {
	select {
	case r.slots <- struct{}{}:
	case <-r.status.over:
		return Node{}, r.status.Err()
	}
	defer func() { <-r.slots }()
	usable := r.requests.connection
	if deciding {
		usable = r.requests.confirmation
	}
	gen, err := usable()
	if err != nil {
		return Node{}, err
	}
	n, err := q(r.requests.conn, path)
	if now, gone := usable(); deciding && err == nil && (gone != nil || now != gen) {
		return Node{}, errMoved
	}
	return n, err
}

// Hint reads a znode, once. It waits until the server answers or the connection breaks,
// so it is for goroutines that can wait.
func (r *Reads) Hint(path string, q Question) (Hint, error) {
	n, err := r.ask(path, q, false)
	return Hint{n}, err
}

// Look is Hint, again and again until the server answers. It fails only when the session
// is over, or when the servers refuse the read.
func (r *Reads) Look(path string, q Question) (Hint, error) {
	n, err := r.insist(path, q, false)
	return Hint{n}, err
}

// Decide makes a deciding read, again and again until the server answers. It fails only
// when the session is over, or when the servers refuse the read.
func (r *Reads) Decide(path string, q Question) (Decided, error) {
	n, err := r.insist(path, q, true)
	return Decided{n}, err
}

// DecideFor is Decide for callers. It also gives up when ctx ends, and when the session
// cannot be trusted any more.
func (r *Reads) DecideFor(ctx context.Context, path string, q Question) (Decided, error) {
	return Within(ctx, r.status, func() (Decided, error) { return r.Decide(path, q) })
}

func (r *Reads) insist(path string, q Question, deciding bool) (Node, error) {
	for {
		n, err := r.ask(path, q, deciding)
		if err == nil || Refusal(err) {
			return n, err
		}
		if err := r.status.Retry(); err != nil {
			return n, err
		}
	}
}

// CreateContainer creates a container, once. It is not pinned. Creating a container
// twice does no harm.
func (r *Reads) CreateContainer(path string, data []byte, acl []zk.ACL) error {
	_, err := r.ask(path, func(c *zk.Conn, path string) (Node, error) {
		_, err := c.CreateContainer(path, data, zk.FlagContainer, acl)
		if errors.Is(err, zk.ErrNoNode) {
			err = ErrNoParent
		}
		return Node{}, refusalOf(&zk.CreateRequest{Path: path}, err)
	}, false)
	return err
}

// Within runs a call that cannot be cancelled. It stops waiting for the call when ctx
// ends, or when the session cannot be trusted any more. The call itself goes on. The
// session waits for it when it shuts down.
func Within[T any](ctx context.Context, s *Status, call func() (T, error)) (zero T, err error) {
	if ctx.Err() != nil {
		return zero, fmt.Errorf("%w: %w", driver.ErrUnavailable, context.Cause(ctx))
	}
	var v T
	var failed error
	done := make(chan struct{})
	s.Go(func() {
		defer close(done)
		v, failed = call()
	})
	if err := s.Await(ctx, done); err != nil {
		return zero, err
	}
	return v, failed
}
