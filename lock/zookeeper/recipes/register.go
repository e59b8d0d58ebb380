package recipes

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/once"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// ErrConflict is returned by [Register.Save] if the value is not at the version that the caller
// has seen.
var ErrConflict = errors.New("zookeeper: register was changed by another writer")

// Register is a small persistent value with a version, kept in one znode. A read sees every write
// that was acknowledged before the read began. It is safe for concurrent use.
type Register struct {
	c    *held.Client
	name string // as given
	path string
	err  error // of a wrong path, in one of Registers
}

// NewRegister returns the register at an absolute path below the chroot. The znode need not
// exist. Its data is the value. The error is that of [NewMutex].
func NewRegister(in zookeeper.Space, path string) (*Register, error) {
	r := Registers(in)(path)
	if r.err != nil {
		return nil, r.err
	}
	return r, nil
}

// MustNewRegister is [NewRegister] for known-good wiring. It panics where NewRegister returns an error.
func MustNewRegister(in zookeeper.Space, path string) *Register {
	return held.Must(NewRegister(in, path))
}

// Registers returns a function for the registers of a client. It is for a package that chooses the
// path itself, such as tokenstore/redis for its witness. Load and Save of a register at a wrong path
// return the error of [NewRegister]. The constructor of the store loads its witness, so a service with
// such a path does not start.
func Registers(in zookeeper.Space) func(path string) *Register {
	return func(path string) *Register {
		c, name, full, err := held.Locate(in, path)
		return &Register{c: c, name: name, path: full, err: err}
	}
}

// Load returns the value and its version. It returns nil, 0 and no error if there is no value.
func (r *Register) Load(ctx context.Context) (data []byte, version int64, err error) {
	if r.err != nil {
		return nil, 0, r.err
	}
	t, err := r.c.Table()
	if err != nil {
		return nil, 0, err
	}
	if err := t.Session.Pulse.Barrier(ctx); err != nil { // others may have written a moment ago
		return nil, 0, err
	}
	n, err := t.Session.Reads.DecideFor(ctx, r.path, session.OfNode)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: load: %w", driver.ErrUnavailable, err)
	}
	if !n.Exists {
		return nil, 0, nil
	}
	return n.Data, int64(n.Version) + 1, nil // versions of znodes start at 0
}

// MaxRegister is the largest size of a value, in bytes. Servers cut the connection of a client
// whose transaction is larger than their jute.maxbuffer, 1 MiB by default.
const MaxRegister = 512 << 10

// ErrRegisterTooLarge is returned by [Register.Save] for a value of more than MaxRegister bytes.
// Nothing was sent.
var ErrRegisterTooLarge = errors.New("zookeeper: register value is too large")

// Save stores the value if the register is still at version. Version 0 means that there is no
// value yet. It returns nil if this call stored the value. It returns ErrConflict if the register
// was at another version and this call stored nothing, even if replies were lost. Any other error
// wraps driver.ErrUnavailable, or is about the value or the path. After driver.ErrUnavailable the
// value may have been stored, or may be stored yet.
func (r *Register) Save(ctx context.Context, data []byte, version int64) error {
	if r.err != nil {
		return r.err
	}
	if len(data) > MaxRegister {
		return fmt.Errorf("%w: %d bytes, %d are the most", ErrRegisterTooLarge, len(data), MaxRegister)
	}
	t, err := r.c.Table()
	if err != nil {
		return err
	}
	if version < 0 || version > math.MaxInt32 {
		return ErrConflict // a znode has no such version, and -1 would be any
	}
	var op any = &zk.SetDataRequest{Path: r.path, Data: data, Version: int32(version - 1)}
	if version == 0 {
		op = t.Client.Persistent(r.path, data)
	}
	var res session.Result
	for range held.MaxTries {
		res = once.Write(ctx, t, nil, op)
		switch {
		case res.Outcome == session.Applied:
			return nil
		case version == 0 && res.RefusedBy(zk.ErrNoNode):
			if err := t.Parents.EnsureParentsFor(ctx, r.path); err != nil {
				return fmt.Errorf("%w: save: %w", driver.ErrUnavailable, err)
			}
		case res.RefusedBy(zk.ErrNodeExists), res.RefusedBy(zk.ErrBadVersion), res.RefusedBy(zk.ErrNoNode):
			return ErrConflict
		default:
			return fmt.Errorf("%w: save: %w", driver.ErrUnavailable, res.Err)
		}
	}
	return fmt.Errorf("%w: save: the parent of %s vanished %d times: %w", driver.ErrUnavailable, r.name, held.MaxTries, res.Err)
}
