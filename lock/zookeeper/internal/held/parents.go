package held

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Parents makes persistent znodes in one session.
type Parents struct {
	session *session.Session
	c       *Client

	mu     sync.Mutex
	making map[string]func() error // returns when the znode is made
}

// Above is the path of the parent, and "" if that is "/".
func Above(path string) string { return path[:strings.LastIndexByte(path, '/')] }

// EnsureParents makes the missing persistent znodes above path. It begins with
// the lowest one, because the others are nearly always there. Making a znode twice does no
// harm, so after a lost reply it does it again.
func (p *Parents) EnsureParents(path string) error {
	parent := Above(path)
	if parent == "" {
		return nil
	}
	var err error
	for range MaxTries {
		if err = p.Ensure(parent); !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		if err := p.EnsureParents(parent); err != nil {
			return err
		}
	}
	return err
}

// EnsureParentsFor is EnsureParents for callers. It stops waiting when ctx ends.
func (p *Parents) EnsureParentsFor(ctx context.Context, path string) error {
	_, err := session.Within(ctx, p.session.Status, func() (struct{}, error) { return struct{}{}, p.EnsureParents(path) })
	return err
}

// Ensure makes one persistent znode. Calls for the same one share the write, because the
// servers would refuse all but the first.
func (p *Parents) Ensure(path string) error {
	p.mu.Lock()
	ensured := p.making[path]
	if ensured == nil {
		ensured = sync.OnceValue(func() error {
			err := p.ensure(path)
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.making, path)
			return err
		})
		p.making[path] = ensured
	}
	p.mu.Unlock()
	return ensured()
}

func (p *Parents) ensure(path string) error {
	for {
		r := p.session.Writes.Do(p.c.Persistent(path, nil))
		switch {
		case r.Outcome == session.Applied, r.RefusedBy(zk.ErrNodeExists):
			return nil
		case r.Outcome == session.Ended, r.Outcome == session.Refused:
			return fmt.Errorf("zookeeper: create %s: %w", path, r.Err)
		}
		if err := p.session.Status.Retry(); err != nil {
			return err
		}
	}
}
