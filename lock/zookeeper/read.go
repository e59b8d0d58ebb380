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

// node is what a read found.
type node struct {
	exists  bool
	data    []byte
	czxid   int64
	session int64 // of an ephemeral znode; 0 otherwise
	version int32 // of the data
	mtime   int64 // of the data: ms since 1970, by the clock of the server that led

	children int32 // how many
}

// get reads a znode, once. It waits until it is answered or the connection
// breaks, so it is for goroutines that can wait.
func (s *session) get(path string) (node, error) {
	return s.read(path, func() ([]byte, *zk.Stat, error) { return s.conn.Get(path) })
}

func (s *session) read(path string, call func() ([]byte, *zk.Stat, error)) (node, error) {
	select {
	case s.reads <- struct{}{}:
	case <-s.over:
		return node{}, s.reason()
	}
	defer func() { <-s.reads }()
	if _, err := s.connection(); err != nil {
		return node{}, err
	}
	guard := s.guard()
	data, stat, err := call()
	guard.stop()
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return node{}, nil
	case err != nil:
		return node{}, fmt.Errorf("zookeeper: read %s: %w", path, notPermittedAt(path, err))
	case stat == nil:
		return node{}, fmt.Errorf("zookeeper: read %s: no stat", path)
	}
	return node{exists: true, data: data, czxid: stat.Czxid, session: stat.EphemeralOwner, version: stat.Version, mtime: stat.Mtime, children: stat.NumChildren}, nil
}

// mustGet reads a znode, again and again until that is answered. It fails only
// when the session is over, or where the answer is that it may not.
func (s *session) mustGet(path string) (node, error) {
	return s.insist(func() (node, error) { return s.get(path) })
}

func (s *session) insist(read func() (node, error)) (node, error) {
	for {
		n, err := read()
		if err == nil || refusal(err) {
			return n, err
		}
		if err := s.settled(); err != nil {
			return node{}, err
		}
		if err := s.pause(); err != nil {
			return node{}, err
		}
	}
}

// settle reads what became of a write whose outcome is unknown.
func (s *session) settle(path string) (node, error) {
	if err := s.finalBarrier(); err != nil {
		return node{}, err
	}
	return s.mustGet(path)
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
