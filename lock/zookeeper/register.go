package zookeeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
)

// ErrConflict is returned by [Register.Save] when the value is not at the
// version that the caller has seen.
var ErrConflict = errors.New("zookeeper: register was changed by another writer")

// Register is a small persistent value with a version: a znode. Reads see every
// write that was acknowledged before they began. It is safe for concurrent use.
type Register struct {
	c    *Client
	name string // as given
	path string
}

// Register returns the register at an absolute path below the chroot. It need
// not exist. The znode holds a line of this package's own before the value.
func (c *Client) Register(path string) *Register {
	return &Register{c: c, name: path, path: c.cfg.Chroot + path}
}

// Load returns the value and its version, or nil, 0 and no error when there is
// none.
func (r *Register) Load(ctx context.Context) (data []byte, version int64, err error) {
	if err := checkPath("register", r.name, false); err != nil {
		return nil, 0, err
	}
	s, err := r.c.usable()
	if err != nil {
		return nil, 0, err
	}
	if err := s.barrier(ctx); err != nil { // the server may lag behind
		return nil, 0, err
	}
	n, err := within(ctx, s, func() (node, error) { return s.get(r.path) })
	if err != nil {
		return nil, 0, fmt.Errorf("%w: load: %w", idem.ErrUnavailable, err)
	}
	_, data, version = r.parse(n)
	return data, version, nil
}

// Save stores the value if the register still is at version, which is 0 where
// there must be none yet, and returns ErrConflict if it is not. It returns nil
// only if this very call stored it. After a lost reply ErrConflict may also mean
// that it did and another writer has replaced it since. Any other error leaves
// it open whether it did, or still will.
func (r *Register) Save(ctx context.Context, data []byte, version int64) error {
	if err := checkPath("register", r.name, false); err != nil {
		return err
	}
	s, err := r.c.usable()
	if err != nil {
		return err
	}
	_, err = within(ctx, s, func() (struct{}, error) { return struct{}{}, r.save(s, data, version) })
	return err
}

func (r *Register) save(s *session, data []byte, version int64) error {
	stamp := []byte(newUUID())
	stored := bytes.Join([][]byte{stamp, data}, []byte("\n"))
	var op any = &zk.SetDataRequest{Path: r.path, Data: stored, Version: int32(version - 1)}
	if version == 0 {
		op = &zk.CreateRequest{Path: r.path, Data: stored, Acl: s.cfg.ACL, Flags: zk.FlagPersistent}
	}
	for range maxTries {
		res := s.w.do(op)
		switch {
		case res.outcome == applied:
			return nil
		case version == 0 && res.refusedBy(zk.ErrNoNode):
			if err := s.ensureParents(r.path); err != nil {
				return fmt.Errorf("%w: save: %w", idem.ErrUnavailable, err)
			}
			continue
		case res.refusedBy(zk.ErrNodeExists), res.refusedBy(zk.ErrBadVersion), res.refusedBy(zk.ErrNoNode):
			return ErrConflict
		case res.outcome != unknown:
			return fmt.Errorf("%w: save: %w", idem.ErrUnavailable, res.err)
		}
		n, err := s.settle(r.path)
		if err != nil {
			return fmt.Errorf("%w: save: %w", idem.ErrUnavailable, err)
		}
		switch got, _, at := r.parse(n); {
		case bytes.Equal(got, stamp):
			return nil
		case at != version:
			return ErrConflict
		}
	}
	return fmt.Errorf("%w: save: replies were lost %d times", idem.ErrUnavailable, maxTries)
}

// parse takes a znode apart. Versions of znodes start at 0, those of registers
// at 1.
func (r *Register) parse(n node) (stamp, data []byte, version int64) {
	if !n.exists {
		return nil, nil, 0
	}
	stamp, data, found := bytes.Cut(n.data, []byte("\n"))
	if !found {
		stamp, data = nil, n.data // written by hand
	}
	return stamp, data, int64(n.version) + 1
}
