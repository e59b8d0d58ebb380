package zookeeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
)

// ErrBaseMismatch says that another Config.Base is in use with the locks below
// Config.Root. Where it is to be changed, stop all instances, delete the znode
// "base" below the root, and settle what is open first: under another base the
// locks are of another domain.
var ErrBaseMismatch = errors.New("zookeeper: another Config.Base is in use with these locks")

// agreeOnBase compares the base with that of all who use the root, and puts it down
// where this is the first of them. A client that may not read or write there has no
// use for the locks, and is let go on.
func (s *session) agreeOnBase(ctx context.Context) error {
	path, base := s.cfg.basePath(), s.cfg.Chroot+s.cfg.Base
	for {
		n, err := within(ctx, s, func() (decided, error) { return s.decide(path, ofNode) })
		switch {
		case refusal(err):
			return nil
		case err != nil:
			return err
		case n.exists && string(n.data) != base:
			return fmt.Errorf("%w: %s says %q, and this client has %q", ErrBaseMismatch, path, n.data, base)
		case n.exists:
			return nil
		}
		again, err := within(ctx, s, func() (bool, error) { return s.putBase(path, base) })
		if err != nil || !again {
			return err
		}
	}
}

// putBase makes the znode, and reports whether to look at it then.
func (s *session) putBase(path, base string) (again bool, err error) {
	r := s.w.do(&zk.CreateRequest{Path: path, Data: []byte(base), Acl: s.cfg.ACL, Flags: zk.FlagPersistent})
	switch {
	case r.refusedBy(zk.ErrNoNode):
		err := s.ensureParents(path)
		if refusal(err) {
			return false, nil
		}
		return err == nil, err
	case r.outcome == ended:
		return false, fmt.Errorf("%w: %w", idem.ErrUnavailable, r.err)
	case r.outcome == refused && !r.refusedBy(zk.ErrNodeExists):
		return false, nil
	}
	return true, nil // made by this client or another, or not known: look
}
