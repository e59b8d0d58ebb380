package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Node is the result of a read. It comes as a [Hint] or as [Decided].
type Node struct {
	Exists  bool
	Data    []byte
	Names   []string // of the children, if the read asked for them
	Czxid   int64
	Session int64 // of an ephemeral znode; 0 otherwise
	Version int32 // of the data
	Mtime   int64 // of the data: ms since 1970, by the clock of the server that led

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
// event comes to link.onEvent.

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
	case stat == nil:
		return Node{}, fmt.Errorf("zookeeper: read %s: no stat", path)
	}
	return Node{
		Exists: true, Data: data, Names: names, Czxid: stat.Czxid, Session: stat.EphemeralOwner,
		Version: stat.Version, Mtime: stat.Mtime, Children: stat.NumChildren,
	}, nil
}

// errMoved refuses the answer to a deciding read over another connection.
var errMoved = errors.New("zookeeper: the connection was lost before a deciding read was answered")

// reader makes the requests that are not pinned.
type reader struct{ *requests }

// Hint reads a znode, once. It waits until the server answers or the connection breaks,
// so it is for goroutines that can wait.
func (r *reader) Hint(path string, ask Question) (Hint, error) {
	n, err := call(r.requests, func(c *zk.Conn) (Node, error) {
		if _, err := r.connection(); err != nil {
			return Node{}, err
		}
		return ask(c, path)
	})
	return Hint{n}, err
}

// Look is Hint, again and again until the server answers. It fails only when the session
// is over, or when the servers refuse the read.
func (r *reader) Look(path string, ask Question) (Hint, error) {
	return insist(r.status, func() (Hint, error) { return r.Hint(path, ask) })
}

// Decide makes a deciding read, again and again until the server answers. It fails only
// when the session is over, or when the servers refuse the read.
func (r *reader) Decide(path string, ask Question) (Decided, error) {
	return insist(r.status, func() (Decided, error) { return r.decideOnce(path, ask) })
}

// maxTries bounds how often DecideFor asks.
const maxTries = 8

// DecideFor is Decide for callers. It also gives up when ctx ends, and when the session
// cannot be trusted any more.
func (r *reader) DecideFor(ctx context.Context, path string, ask Question) (n Decided, err error) {
	for range maxTries {
		if err := r.AwaitUp(ctx); err != nil {
			return Decided{}, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
		}
		n, err = within(ctx, r.status, func() (Decided, error) { return r.decideOnce(path, ask) })
		if err == nil || Refusal(err) || ctx.Err() != nil || r.Pause() != nil {
			return n, err
		}
	}
	return n, err
}

func (r *reader) decideOnce(path string, ask Question) (Decided, error) {
	n, err := call(r.requests, func(c *zk.Conn) (Node, error) {
		gen, err := r.confirmation()
		if err != nil {
			return Node{}, err
		}
		n, err := ask(c, path)
		if now, gone := r.confirmation(); err == nil && (gone != nil || now != gen) {
			return Node{}, errMoved
		}
		return n, err
	})
	return Decided{n}, err
}

// CreateContainer creates a container, once. It is not pinned. Creating a container
// twice does no harm.
func (r *reader) CreateContainer(path string, data []byte, acl []zk.ACL) error {
	_, err := call(r.requests, func(c *zk.Conn) (struct{}, error) {
		if _, err := r.connection(); err != nil {
			return struct{}{}, err
		}
		_, err := c.CreateContainer(path, data, zk.FlagContainer, acl)
		if errors.Is(err, zk.ErrNoNode) {
			err = ErrNoParent
		}
		return struct{}{}, refusalOf(&zk.CreateRequest{Path: path}, err)
	})
	return err
}

// insist reads again and again. It fails only when the session is over, or when the
// servers refuse the read.
func insist[T any](s *status, read func() (T, error)) (T, error) {
	for {
		n, err := read()
		if err == nil || Refusal(err) {
			return n, err
		}
		if err := s.Retry(); err != nil {
			return n, err
		}
	}
}

// Within runs a call that cannot be cancelled, and stops waiting for it when ctx ends or
// the session is over. The call itself goes on. The session waits for it when it shuts
// down.
func Within[T any](ctx context.Context, s *Session, call func() (T, error)) (T, error) {
	return within(ctx, s.status, call)
}

func within[T any](ctx context.Context, s *status, call func() (T, error)) (v T, err error) {
	if ctx.Err() != nil {
		return v, fmt.Errorf("%w: %w", idem.ErrUnavailable, context.Cause(ctx))
	}
	type answer struct {
		v   T
		err error
	}
	ch := make(chan answer, 1)
	s.Go(func() {
		v, err := call()
		ch <- answer{v, err}
	})
	select {
	case a := <-ch:
		return a.v, a.err
	case <-ctx.Done():
		return v, fmt.Errorf("%w: %w", idem.ErrUnavailable, context.Cause(ctx))
	case <-s.over:
		return v, fmt.Errorf("%w: %w", idem.ErrUnavailable, s.Err())
	}
}
