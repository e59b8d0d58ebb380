package zookeeper

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"
	"golang.org/x/sync/errgroup"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// OpenParents lists the znodes above this client's own that every client may change. It
// looks at the parents of locks, of session members and of the lock domain. It also looks
// at the znodes above the given paths of recipes. A client with the permission to delete
// below a znode can unlock the locks there, even if the locks' own ACLs forbid it. With the
// default ACL of a client without Credentials the list has all of these znodes. With
// credentials it should be empty.
//
// The list has full paths with the chroot, as administrators see them. It leaves out
// missing znodes, and it leaves out "/", because every ensemble opens "/" to the world.
// Every client can make children of "/", but can delete them only while they are empty.
// Make a chroot beforehand to prevent this.
//
// The error wraps driver.ErrUnavailable. It wraps [ErrNotPermitted] if the client may not
// read an ACL. The list then covers the other znodes.
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
	if err := s.session.Pulse.Barrier(ctx); err != nil { // another client may have made some a moment ago
		return nil, err
	}
	locks, err := s.session.Reads.DecideFor(ctx, c.cfg.rootPath(), session.OfChildren)
	if err != nil {
		return nil, fmt.Errorf("%w: list %s: %w", driver.ErrUnavailable, c.cfg.Root, err)
	}
	all := c.cfg.relied()
	for _, name := range locks.Names {
		all = append(all, c.cfg.rootPath()+"/"+name)
	}
	for _, p := range paths {
		all = append(all, lineage(c.cfg.Chroot+p)...)
	}
	return s.openAmong(ctx, all)
}

// warnOfOpenParents warns operators if every client may change a znode above the client's
// own znodes.
func (c *Client) warnOfOpenParents() {
	k := c.core.Keeper
	s, err := c.usable()
	if err != nil || worldWritable(c.cfg.ACL) {
		return
	}
	k.Go(func() {
		open, err := s.openAmong(k.Context(), c.cfg.relied())
		if len(open) > 0 {
			c.cfg.Logger.Warn("zookeeper: every client can unlock, znodes are open to the world", "znodes", strings.Join(open, " "))
		}
		if err != nil && k.Context().Err() == nil && s.session.Status.Err() == nil {
			c.cfg.Logger.Warn("zookeeper: cannot tell whether znodes are open to the world", "error", err)
		}
	})
}

// relied lists the znodes that every client relies on, without the many parents of locks.
func (c *Config) relied() []string {
	return slices.Concat(lineage(c.rootPath()), lineage(c.membersPath()), []string{c.domainPath()})
}

// lineage is a znode and all above it, without "/".
func lineage(path string) (all []string) {
	for ; path != ""; path = held.Above(path) {
		all = append(all, path)
	}
	return all
}

// aclReaders is how many ACLs openAmong reads at once. There are thousands of parents of
// locks, and reading one after the other would take minutes.
const aclReaders = 16

// openAmong returns those of the znodes that every client may change.
func (s *locks) openAmong(ctx context.Context, znodes []string) (open []string, err error) {
	slices.Sort(znodes)
	var mu sync.Mutex
	var hidden error // an ACL that may not be read
	var readers errgroup.Group
	readers.SetLimit(aclReaders)
	for _, znode := range slices.Compact(znodes) {
		readers.Go(func() error {
			acl, err := session.Within(ctx, s.session.Status, func() (acl []zk.ACL, err error) {
				_, err = s.session.Reads.Look(znode, session.OfACL(&acl)) // empty for a missing znode
				return acl, err
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
			}
			switch {
			case session.Refusal(err):
				hidden = err
			case err != nil:
				return err
			case worldWritable(acl):
				open = append(open, znode)
			}
			return nil
		})
	}
	if err = readers.Wait(); err == nil {
		err = hidden
	}
	slices.Sort(open)
	return open, err
}

// worldWritable reports whether an ACL lets every client do more than read. It does not
// consider ACLs for addresses.
func worldWritable(acl []zk.ACL) bool {
	return slices.ContainsFunc(acl, func(entry zk.ACL) bool {
		return entry.Scheme == "world" && entry.Perms&^zk.PermRead != 0
	})
}
