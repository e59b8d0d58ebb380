package zookeeper

import "github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"

// Namespace is a view of a [Client] below a path: applications that share an
// ensemble, and modules of one that share a Client, keep their names apart by
// it. It has no session and no state of its own. What it returns is what the
// Client would return for the longer path.
//
// Locks of keys ([Client.Locker]) have a root of their own, Config.Root.
type Namespace struct {
	c      *Client
	prefix string
}

// Namespace returns the view below an absolute path under the chroot, such as
// "/billing". A path that is none makes the calls of what comes from it fail.
func (c *Client) Namespace(path string) Namespace { return Namespace{c, path} }

// Namespace returns the view below a path in this one.
func (n Namespace) Namespace(path string) Namespace { return Namespace{n.c, n.prefix + path} }

// Base is for the packages recipes and queue.
func (n Namespace) Base() (*held.Client, string) { return &n.c.core, n.prefix }
