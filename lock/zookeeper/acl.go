package zookeeper

import (
	"errors"
	"fmt"
	"path"

	"github.com/go-zookeeper/zk"
)

// ErrNotPermitted says that the servers refused a request because of a znode's
// ACL, which the error names: it was made by somebody else, or for somebody
// else. Nothing was applied, and trying again does not help.
var ErrNotPermitted = errors.New("zookeeper: not permitted")

// notPermitted says whose ACL it was that had an operation refused. Creating and
// deleting are checked at the parent.
func notPermitted(op any, err error) error {
	switch op := op.(type) {
	case *zk.CreateRequest:
		return notPermittedBelow(op.Path, err)
	case *zk.DeleteRequest:
		return notPermittedBelow(op.Path, err)
	case *zk.SetDataRequest:
		return notPermittedAt(op.Path, err)
	}
	return err
}

// notPermittedBelow is for a request to create or delete the znode at path.
func notPermittedBelow(znode string, err error) error {
	if errors.Is(err, zk.ErrInvalidACL) && !errors.Is(err, errUnknownToServers) {
		return fmt.Errorf("%w, or do not know a scheme of Config.ACL: create %s: %w", errUnknownToServers, znode, err)
	}
	return notPermittedAt(path.Dir(znode), err)
}

// errUnknownToServers says that an ACL for "whoever I am" could not be made.
var errUnknownToServers = errors.New("zookeeper: the servers have not authenticated this client")

// notPermittedAt is for a request that the ACL of znode itself decides about.
// Any other error than its refusal is returned as it is.
func notPermittedAt(znode string, err error) error {
	if !errors.Is(err, zk.ErrNoAuth) || errors.Is(err, ErrNotPermitted) {
		return err
	}
	return fmt.Errorf("%w by the ACL of %s, which is not for this client: %w", ErrNotPermitted, znode, err)
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

// refusal says that a request was answered: by that it may not be, or cannot.
func refusal(err error) bool {
	return errors.Is(err, ErrNotPermitted) || errors.Is(err, errUnknownToServers) ||
		errors.Is(err, zk.ErrNoChildrenForEphemerals) || errors.Is(err, zk.ErrBadArguments)
}
