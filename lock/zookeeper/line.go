package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// line is a znode below which those who want the same thing queue up: each has
// an ephemeral sequential znode there, its place, and the servers number the
// places in the order in which they were taken. A place is never taken in front
// of one that there is, and never moves.
//
// The parent is a container, which the servers remove some time after its last
// child has gone.
type line struct {
	c    *Client
	name string // as given
	path string // with the chroot
	data []byte // of the parent, should it have to be made
	uses atomic.Uint64

	// agreed, if not nil, says whether a place that was just taken may stay, by
	// what the parent is then.
	agreed func(ctx context.Context, s *locks, l *Lease) error
}

func (c *Client) line(path string) *line {
	return &line{c: c, name: path, path: c.cfg.Chroot + path}
}

func (ln *line) check() error { return checkPath("path", ln.name, false) }

// position is a place in a line, read off its znode's name:
//
//	<role>-<unique>-<sequence number>
type position struct {
	name string
	role string // what it is for, such as "read"; no "-" in it
	seq  int32  // given by the servers; it wraps
}

// before says which of two places was taken first. Numbers of one line wrap
// past 2³¹; what is in line at the same time is never that far apart.
func (p position) before(q position) int {
	if d := p.seq - q.seq; d != 0 {
		return cmp.Compare(d, 0)
	}
	return strings.Compare(p.name, q.name)
}

// parsePosition reads a name. It is false for one that is not of this package's
// making: somebody else's children of the parent are nobody's places.
func parsePosition(name string) (position, bool) {
	// The servers write the number with %010d: at least 10 characters, 11 with
	// a minus sign.
	head, tail := len(name)-10, 10
	if head > 2 && name[head-1] == '-' && name[head-2] == '-' {
		head, tail = head-1, 11
	}
	if head < 4 || name[head-1] != '-' {
		return position{}, false
	}
	seq, err := strconv.ParseInt(name[len(name)-tail:], 10, 32)
	role, unique, ok := strings.Cut(name[:head-1], "-")
	if err != nil || !ok || role == "" || len(unique) != uniqueLen {
		return position{}, false
	}
	return position{name: name, role: role, seq: int32(seq)}, true
}

// positions sorts a line.
func positions(names []string) []position {
	all := make([]position, 0, len(names))
	for _, name := range names {
		if p, ok := parsePosition(name); ok {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, position.before)
	return all
}

// ensureLine makes the parent, and the znodes above it. Making one twice does
// no harm, so it need not be pinned, and a lost reply is answered by doing it
// again.
func (s *locks) ensureLine(ln *line) error {
	for {
		err := s.container(ln.path, ln.data)
		if errors.Is(err, session.ErrNoParent) {
			if err = s.ensureLineParents(ln.path); err == nil {
				continue
			}
		}
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			return nil
		case session.Definite(err), session.Answered(err):
			return fmt.Errorf("zookeeper: create %s: %w", ln.path, err)
		}
		if err := s.Retry(); err != nil {
			return err
		}
	}
}

// ensureLineParents makes the containers above the parent of a line, so that a
// path with a number in it leaves nothing behind. What is there is left as it
// is; who may not create here may still create further down.
func (s *locks) ensureLineParents(path string) error {
	var denied error
	for i := 1; i < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		var err error
		if i <= len(s.cfg.Chroot) {
			err = s.ensure(path[:i]) // it stays
		} else {
			err = s.container(path[:i], nil)
		}
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
		case errors.Is(err, ErrNotPermitted):
			denied = err
		case errors.Is(err, session.ErrNoParent) && denied != nil:
			return denied
		default:
			return err
		}
	}
	return nil
}

func (s *locks) container(path string, data []byte) error {
	return s.CreateContainer(path, data, s.cfg.ACL)
}

// acquire takes a place and waits for its turn. It takes another one when it
// loses the one it has, until ctx ends or the client's retries are used up.
func (ln *line) acquire(ctx context.Context, role string, data []byte, r rule) (*Lease, error) {
	if err := ln.check(); err != nil {
		return nil, err
	}
	for retry := ln.c.cfg.Retry.start(); ; {
		lease, err := ln.try(ctx, role, data, func(s *locks, l *Lease) error { return s.awaitTurn(ctx, l, r) })
		if err == nil || session.Refusal(err) || !errors.Is(err, idem.ErrUnavailable) && !errors.Is(err, idem.ErrLeaseLost) {
			return lease, err
		}
		if !retry.wait(ctx, ln.c) {
			return nil, fmt.Errorf("%w: %s not acquired: %w", idem.ErrUnavailable, ln.name, errors.Join(context.Cause(ctx), err))
		}
	}
}

// tryAcquire takes a place and gives it back unless it is its turn at once.
func (ln *line) tryAcquire(ctx context.Context, role string, data []byte, r rule) (*Lease, error) {
	if err := ln.check(); err != nil {
		return nil, err
	}
	return ln.try(ctx, role, data, func(s *locks, l *Lease) error { return s.turnAtOnce(ctx, l, r) })
}

// try takes a place for as long as fit is content with it.
func (ln *line) try(ctx context.Context, role string, data []byte, fit func(*locks, *Lease) error) (*Lease, error) {
	s, err := ln.c.usable()
	if err != nil {
		return nil, err
	}
	lease, err := s.enqueue(ctx, ln, role, data)
	if err != nil {
		return nil, err
	}
	if ln.agreed != nil {
		err = ln.agreed(ctx, s, lease)
	}
	if err == nil {
		err = fit(s, lease)
	}
	if err != nil {
		lease.ReleaseInBackground()
		return nil, err
	}
	return lease, nil
}
