package held

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// MaxTries bounds the creates of one attempt. It sends the create again after a missing parent,
// an orphan, a departed holder or a lost reply.
const MaxTries = 8

// Client is the shared base of all parts of one zookeeper.Client.
type Client struct {
	Keeper *session.Keeper
	Chroot string
	ACL    []zk.ACL // of every znode
	Policy RetryPolicy
	Log    *slog.Logger
	Now    leaseclock.Source
	Owner  Owner // of every znode with a lease, without a nonce

	// MaxClaims bounds the claims of one session.
	MaxClaims int

	tries atomic.Uint64
}

// Owned is the data of a new znode. Its nonce is a name for operators.
func (c *Client) Owned(nonce string) Owner {
	o := c.Owner
	o.Nonce, o.Try = nonce, c.Try()
	return o
}

// Try returns a name that this client never uses again.
func (c *Client) Try() string { return fmt.Sprint(c.tries.Add(1)) }

// Persistent is the create of a persistent znode.
func (c *Client) Persistent(path string, data []byte) *zk.CreateRequest {
	return &zk.CreateRequest{Path: path, Data: data, Acl: c.ACL, Flags: zk.FlagPersistent}
}

// Ephemeral is the create of an ephemeral znode.
func (c *Client) Ephemeral(path string, data []byte) *zk.CreateRequest {
	return &zk.CreateRequest{Path: path, Data: data, Acl: c.ACL, Flags: zk.FlagEphemeral}
}

// ClientOf returns the client below a zookeeper.Space, and the prefix of all paths. Package zookeeper
// sets it when the program starts. Users of the library could call a method.
var ClientOf func(space any) (c *Client, prefix string)

// Locate returns the client below a zookeeper.Space, the path as users of the space know it, and the
// path with the chroot. The error is for a space without a client, and for a path that cannot be.
func Locate(space any, path string) (c *Client, name, full string, err error) {
	var prefix string
	if space != nil {
		c, prefix = ClientOf(space)
	}
	if c == nil {
		return nil, "", "", errors.New("zookeeper: no client: use one that zookeeper.Open returned, or a namespace of it")
	}
	name = prefix + path
	return c, name, c.Chroot + name, CheckPath("path", name, false)
}

// Must returns v, or panics if there is an error. It is for constructors whose arguments are constants.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// CheckPath accepts absolute paths like /a/b, without empty or relative elements.
func CheckPath(name, path string, optional bool) error {
	if path == "" && optional {
		return nil
	}
	if !strings.HasPrefix(path, "/") || path == "/" {
		return fmt.Errorf("zookeeper: %s %q is not an absolute path below /", name, path)
	}
	for part := range strings.SplitSeq(path[1:], "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsFunc(part, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
			return fmt.Errorf("zookeeper: %s %q has the element %q", name, path, part)
		}
	}
	return nil
}

// RetryPolicy is explained in package zookeeper.
type RetryPolicy struct {
	First, Max time.Duration
	Attempts   int
}

// Retries counts the attempts of one call.
type Retries struct {
	c     *Client
	pause session.Backoff
	tries int
}

// Retries begins to count.
func (c *Client) Retries() *Retries {
	return &Retries{c: c, pause: session.Backoff{First: c.Policy.First, Max: c.Policy.Max}}
}

// Wait pauses before the next attempt, and then until the client may serve it. It is false if
// no attempt is left, ctx ends or the client is closed.
func (r *Retries) Wait(ctx context.Context) bool {
	r.tries++
	if most := r.c.Policy.Attempts; most > 0 && r.tries >= most || ctx.Err() != nil {
		return false
	}
	select {
	case <-time.After(r.pause.Next()):
		return r.c.Keeper.AwaitUsable(ctx)
	case <-ctx.Done():
	case <-r.c.Keeper.Context().Done():
	}
	return false
}
