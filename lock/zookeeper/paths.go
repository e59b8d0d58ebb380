package zookeeper

import (
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// lockPath is the path of a key's lock. It has two levels, because the child counter of one
// flat parent of all locks would overflow (see doc.go).
func (c *Config) lockPath(id driver.KeyID) string {
	hex := id.String() // its first three digits name the parent
	return c.rootPath() + "/" + hex[:3] + "/" + hex[3:]
}

// rootPath is the parent of all parents of locks.
func (c *Config) rootPath() string { return c.Chroot + c.Root }

func (c *Config) membersPath() string { return c.Chroot + c.Home + "/members" }

// domainOf is the lock domain of an ensemble with this UUID. Locks under different roots
// do not exclude each other. So they must not seem to be of one domain, because the lock of
// one root proves nothing about that of the other.
func (c *Config) domainOf(uuid string) string {
	if c.Root == defaultRoot {
		return uuid
	}
	return uuid + c.Root
}

func (c *Config) domainPath() string { return c.Chroot + c.Home + "/domain" }

// homePath is the znode by which the clients of a root agree on Config.Home. No parent of
// locks has this name.
func (c *Config) homePath() string { return c.rootPath() + "/home" }
