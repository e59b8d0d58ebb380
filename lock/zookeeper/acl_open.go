package zookeeper

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// OpenParents lists the znodes that this client relies on and that anybody may
// change: the parents of locks, session members and the lock domain, and of what
// is at the given paths, which are those of recipes. Whoever may delete below a
// znode can unlock what is locked there, whatever the locks' own ACLs are. With
// the default ACL of a client without Credentials that is all of them; with
// credentials it should be none.
//
// The znodes are named with the chroot, as administrators see them; those that
// do not exist are left out. "/", which every ensemble opens to the world, is
// never listed: its children can be deleted by anybody only while they are empty,
// but whoever comes first may make them. A chroot made beforehand closes that.
//
// The error wraps idem.ErrUnavailable. It wraps [ErrNotPermitted] where an ACL
// may not be read; the list is complete then as far as it could be.
func (c *Client) OpenParents(ctx context.Context, paths ...string) (open []string, err error) {
	for _, p := range paths {
		if err := held.CheckPath("path", p, false); err != nil {
			return nil, err
		}
	}
	s, err := c.usable()
	if err != nil {
		return nil, err
	}
	if err := s.Barrier(ctx); err != nil { // another client may have made some a moment ago
		return nil, err
	}
	shards, err := s.DecideFor(ctx, c.cfg.Chroot+c.cfg.Root, session.OfChildren)
	if err != nil {
		return nil, fmt.Errorf("%w: list %s: %w", idem.ErrUnavailable, c.cfg.Root, err)
	}
	all := c.cfg.parents()
	for _, name := range shards.Names {
		all = append(all, c.cfg.Chroot+c.cfg.Root+"/"+name)
	}
	for _, p := range paths {
		all = append(all, lineage(c.cfg.Chroot+p)...)
	}
	return s.openAmong(ctx, all)
}

// parents are the znodes that every client relies on, but those that there are
// many of.
func (c *Config) parents() []string {
	all := lineage(c.Chroot + c.Root)
	all = append(all, lineage(c.membersPath())...)
	return append(all, c.domainPath())
}

// lineage is a znode and all above it, but "/".
func lineage(path string) (all []string) {
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			all = append(all, path[:i])
		}
	}
	return append(all, path)
}

// aclReaders is how many ACLs openAmong reads at once. There are thousands of
// parents of locks, and one round trip after the other would take minutes.
const aclReaders = 16

// openAmong returns those of the znodes that anybody may change.
func (s *locks) openAmong(ctx context.Context, znodes []string) (open []string, err error) {
	slices.Sort(znodes)
	znodes = slices.Compact(znodes)
	writable, errs := make([]bool, len(znodes)), make([]error, len(znodes))
	var next atomic.Int64
	var readers sync.WaitGroup
	for range aclReaders {
		readers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(znodes); i = int(next.Add(1)) - 1 {
				acl, err := session.Within(ctx, s.Session, func() ([]zk.ACL, error) { return s.acl(znodes[i]) })
				writable[i], errs[i] = worldWritable(acl), err
			}
		})
	}
	readers.Wait()
	var hidden error
	for i, znode := range znodes {
		switch err := errs[i]; {
		case err == nil && writable[i]:
			open = append(open, znode)
		case err != nil && session.Refusal(err):
			hidden = err
		case err != nil:
			return open, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
		}
	}
	return open, hidden
}

// acl reads an ACL until that is answered or the session is over. The ACL of a missing
// znode is empty.
func (s *locks) acl(path string) (acl []zk.ACL, err error) {
	_, err = s.Look(path, session.OfACL(&acl))
	return acl, err
}

// warnOfOpenParents tells the operators that what this client makes for itself
// alone is below znodes that are everybody's.
func (c *Client) warnOfOpenParents(s *locks) {
	if worldWritable(c.cfg.ACL) {
		return
	}
	c.core.Keeper.Go(func() {
		open, err := s.openAmong(c.core.Keeper.Context(), c.cfg.parents())
		if len(open) > 0 {
			c.cfg.Logger.Warn("zookeeper: anybody can unlock, znodes are open to the world", "znodes", strings.Join(open, " "))
		}
		if err != nil && c.core.Keeper.Context().Err() == nil && s.Err() == nil {
			c.cfg.Logger.Warn("zookeeper: cannot tell whether znodes are open to the world", "error", err)
		}
	})
}

// worldWritable says that an ACL lets anybody do more than read. What an address
// proves is not looked at.
func worldWritable(acl []zk.ACL) bool {
	for _, entry := range acl {
		if entry.Scheme == "world" && entry.Perms&^zk.PermRead != 0 {
			return true
		}
	}
	return false
}
