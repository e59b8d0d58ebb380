package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
)

// node is what a read found. It comes as a [hint] or as [decided].
type node struct {
	exists  bool
	data    []byte
	names   []string // of the children, where the read asked for them
	czxid   int64
	session int64 // of an ephemeral znode; 0 otherwise
	version int32 // of the data
	mtime   int64 // of the data: ms since 1970, by the clock of the server that led

	children int32 // how many
}

// hint is what a read found that may show the past. The server that answered may be
// behind the others, and behind what this session has been told before. So a hint
// says where to look, and when to look again. Nothing is deleted, given up or taken
// for vanished on the strength of it.
type hint struct{ node }

// decided is what a deciding read found. It shows every write that this session had
// been told of before the read was sent, and every write before those.
//
// Two things make it so. The read is sent over a connection over which a pinned write
// was acknowledged: the server answers that when it has applied the write and all
// before it. And the answer counts only if the connection is still the same one when
// it is there, since the client library may send what it has queued over the next
// connection, to a server that has not caught up.
//
// So a deciding read also settles a write whose reply was lost. The connection of that
// write is gone, and the acknowledged write came over a later one, to which the server
// bound the session before. Whatever this session sent before has then been applied or
// never will be. Where the connection is still the same, the server answers a
// session's requests in order.
type decided struct{ node }

// question is a read as the client library takes it.
type question func(c *zk.Conn, path string) (node, error)

func ofNode(c *zk.Conn, path string) (node, error) {
	data, stat, err := c.Get(path)
	return found(path, data, nil, stat, err)
}

func ofChildren(c *zk.Conn, path string) (node, error) {
	names, stat, err := c.Children(path)
	return found(path, nil, names, stat, err)
}

// The following leave a watch where they find a znode, and existsW also where it
// finds none. The event comes to onEvent.

func ofNodeW(c *zk.Conn, path string) (node, error) {
	data, stat, _, err := c.GetW(path)
	return found(path, data, nil, stat, err)
}

func ofChildrenW(c *zk.Conn, path string) (node, error) {
	names, stat, _, err := c.ChildrenW(path)
	return found(path, nil, names, stat, err)
}

func ofExistsW(c *zk.Conn, path string) (node, error) {
	there, stat, _, err := c.ExistsW(path)
	if err == nil && !there {
		return node{}, nil
	}
	return found(path, nil, nil, stat, err)
}

// found makes a node of the library's answer. There being no znode is no error.
func found(path string, data []byte, names []string, stat *zk.Stat, err error) (node, error) {
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return node{}, nil
	case err != nil:
		return node{}, fmt.Errorf("zookeeper: read %s: %w", path, notPermittedAt(path, err))
	case stat == nil:
		return node{}, fmt.Errorf("zookeeper: read %s: no stat", path)
	}
	return node{
		exists: true, data: data, names: names, czxid: stat.Czxid, session: stat.EphemeralOwner,
		version: stat.Version, mtime: stat.Mtime, children: stat.NumChildren,
	}, nil
}

// errMoved says that the connection over which a read was to be answered is gone.
var errMoved = errors.New("zookeeper: the connection was lost before a deciding read was answered")

// hint reads a znode, once. It waits until it is answered or the connection breaks,
// so it is for goroutines that can wait.
func (s *session) hint(path string, ask question) (hint, error) {
	n, err := call(s, func() (node, error) {
		if _, err := s.connection(); err != nil {
			return node{}, err
		}
		return ask(s.conn, path)
	})
	return hint{n}, err
}

// children lists a znode's children, again and again until that is answered or the
// session is over. There being no such znode is an empty list.
func (s *session) children(path string) (hint, error) {
	return insist(s, func() (hint, error) { return s.hint(path, ofChildren) })
}

// decide makes a deciding read, again and again until that is answered. It fails only
// when the session is over, or where the answer is that it may not.
func (s *session) decide(path string, ask question) (decided, error) {
	return insist(s, func() (decided, error) { return s.decideOnce(path, ask) })
}

// decideFor is decide for callers: it also gives up when ctx ends, and when the
// session cannot be trusted any more.
func (s *session) decideFor(ctx context.Context, path string, ask question) (n decided, err error) {
	for range maxTries {
		if err := s.awaitUp(ctx); err != nil {
			return decided{}, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
		}
		n, err = within(ctx, s, func() (decided, error) { return s.decideOnce(path, ask) })
		if err == nil || refusal(err) || ctx.Err() != nil || s.pause() != nil {
			return n, err
		}
	}
	return n, err
}

func (s *session) decideOnce(path string, ask question) (decided, error) {
	n, err := call(s, func() (node, error) {
		gen, err := s.confirmation()
		if err != nil {
			return node{}, err
		}
		n, err := ask(s.conn, path)
		if now, gone := s.confirmation(); err == nil && (gone != nil || now != gen) {
			return node{}, errMoved
		}
		return n, err
	})
	return decided{n}, err
}

// confirmation is connection for deciding reads: a pinned write was acknowledged over
// the present one.
func (s *session) confirmation() (gen uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.connected:
		return 0, errNotConnected
	case !s.confirmed:
		return 0, errNotConfirmed
	}
	return s.gen, nil
}

// call asks the servers: no more than a few calls at a time, and none for too long.
func call[T any](s *session, f func() (T, error)) (T, error) {
	select {
	case s.reads <- struct{}{}:
	case <-s.over:
		var zero T
		return zero, s.reason()
	}
	defer func() { <-s.reads }()
	guard := s.guard()
	defer guard.stop()
	return f()
}

// insist reads again and again. It fails only when the session is over, or where the
// answer is that this client may not.
func insist[T any](s *session, read func() (T, error)) (T, error) {
	for {
		n, err := read()
		if err == nil || refusal(err) {
			return n, err
		}
		if err := s.settled(); err != nil {
			return n, err
		}
		if err := s.pause(); err != nil {
			return n, err
		}
	}
}

// pause keeps loops that have to go on from going round too fast.
func (s *session) pause() error {
	select {
	case <-time.After(5*time.Millisecond + rand.N(20*time.Millisecond)):
		return nil
	case <-s.over:
		return s.reason()
	}
}

// within runs a call that cannot be cancelled and stops waiting for it when ctx
// ends. The call itself goes on; the session waits for it when it shuts down.
func within[T any](ctx context.Context, s *session, call func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	ch := make(chan answer, 1)
	if err := ctx.Err(); err != nil {
		var zero T
		return zero, fmt.Errorf("%w: %w", idem.ErrUnavailable, context.Cause(ctx))
	}
	s.start(func() {
		v, err := call()
		ch <- answer{v, err}
	})
	select {
	case a := <-ch:
		return a.v, a.err
	case <-ctx.Done():
		var zero T
		return zero, fmt.Errorf("%w: %w", idem.ErrUnavailable, context.Cause(ctx))
	case <-s.over:
		var zero T
		return zero, fmt.Errorf("%w: %w", idem.ErrUnavailable, s.reason())
	}
}
