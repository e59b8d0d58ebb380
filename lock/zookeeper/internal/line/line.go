// Package line has the shared parts of the recipes and the queue. A line is a znode. The
// servers number its children in the order of their creation.
package line

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Position is a znode in a line. Its fields come from its name:
//
//	<role>-<unique><number>-<sequence number>
type Position struct {
	Name   string
	Role   string // its purpose, such as "read", without a "-"
	Number int    // within its transaction, below session.MaxBatch
	Seq    int32  // given by the servers, and it wraps
}

// Fence is the fence of the lease for a place. One transaction may put several places in line.
// They have the same czxid, and their numbers tell them apart.
func (p Position) Fence(t *held.Table, czxid int64) driver.Fence {
	f := t.Fence(czxid)
	f.Token = f.Token*session.MaxBatch + uint64(p.Number)
	return f
}

// uniqueLen is the length of a unique part. It has 96 random bits, in hexadecimal.
const uniqueLen = 24

// minDigits is the least length of a sequence number. The servers write it by %010d.
const minDigits = 10

// Unique returns a unique part. It identifies a create after its reply was lost. No two znodes
// ever share one, so a znode in a line may be deleted without reading its owner.
func Unique() string {
	var unique [uniqueLen / 2]byte
	_, _ = rand.Read(unique[:]) // never fails
	return hex.EncodeToString(unique[:])
}

// Prefix is the beginning of the name of a znode.
func Prefix(role, unique string) string { return role + "-" + unique }

// Numbered is the name for the create of a znode. The servers add the sequence number.
func Numbered(prefix string, number int) string { return fmt.Sprintf("%s%02x-", prefix, number) }

// Unique is the unique part of a name.
func (p Position) Unique() string { return p.Name[len(p.Role)+1:][:uniqueLen] }

// before compares two znodes by their age. The numbers of one line wrap past 2³¹. Znodes in
// line at the same time are never that far apart.
func (p Position) before(q Position) int {
	if d := p.Seq - q.Seq; d != 0 {
		return cmp.Compare(d, 0)
	}
	return strings.Compare(p.Name, q.Name)
}

// Parse reads a name. It returns false for the child of another application, because such a
// child is no part of the line.
func Parse(name string) (Position, bool) {
	role, rest, _ := strings.Cut(name, "-")
	unique, digits, _ := strings.Cut(rest, "-")
	if role == "" || len(unique) != uniqueLen+2 || len(digits) < minDigits {
		return Position{}, false
	}
	number, err := strconv.ParseUint(unique[uniqueLen:], 16, 8)
	if err != nil || number >= session.MaxBatch {
		return Position{}, false
	}
	seq, err := strconv.ParseInt(digits, 10, 32)
	return Position{Name: name, Role: role, Number: int(number), Seq: int32(seq)}, err == nil
}

// Sort returns the znodes with these names in the order of the line.
func Sort(names []string) []Position {
	all := make([]Position, 0, len(names))
	for _, name := range names {
		if p, ok := Parse(name); ok {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, Position.before)
	return all
}

// Ensure makes the parent of a line, and the znodes above it. The parent is a container, so the
// servers remove it some time after its last child has gone. Making a znode twice does no harm.
// So the write need not be pinned, and Ensure repeats it after a lost reply.
func Ensure(t *held.Table, path string, data []byte) error {
	var denied error
	for {
		err := t.Session.Reads.CreateContainer(path, data, t.Client.ACL)
		switch {
		case errors.Is(err, session.ErrNoParent) && denied != nil:
			err = denied
		case errors.Is(err, session.ErrNoParent):
			if denied, err = ensureAbove(t, path); err == nil {
				continue
			}
		}
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			return nil
		case session.Definite(err), session.Answered(err):
			return fmt.Errorf("zookeeper: create %s: %w", path, err)
		}
		if err := t.Session.Status.Retry(); err != nil {
			return err
		}
	}
}

// EnsureFor is Ensure for callers. It stops waiting when ctx ends.
func EnsureFor(ctx context.Context, t *held.Table, path string) error {
	_, err := session.Within(ctx, t.Session.Status, func() (struct{}, error) { return struct{}{}, Ensure(t, path, nil) })
	if err != nil {
		return fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	return nil
}

// ensureAbove makes the znodes above the parent of a line. Those below the chroot are
// containers too, so a path with a number in it leaves nothing. A client without the right to
// create a znode here may still create one further down. denied is why the client may not create
// the last of them. It may be there all the same.
func ensureAbove(t *held.Table, path string) (denied, err error) {
	for i := 1; i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		if i <= len(t.Client.Chroot) {
			err = t.Parents.Ensure(path[:i]) // it stays
		} else {
			err = t.Session.Reads.CreateContainer(path[:i], nil, t.Client.ACL)
		}
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			denied = nil
		case errors.Is(err, session.ErrNotPermitted):
			denied = err
		case errors.Is(err, session.ErrNoParent) && denied != nil:
			return nil, denied
		default:
			return nil, err
		}
	}
	return denied, nil
}
