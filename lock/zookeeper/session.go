package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// locks is the state of lockers in one session.
type locks struct {
	session *session.Session
	table   *held.Table
	client  *Client
	log     *slog.Logger

	// made has the names of the existing parents of locks, and of those that a lock is
	// about to make. On an empty ensemble nearly every lock of the first thousands is the
	// first one below its parent. If such locks were sent without their parents, hundreds
	// of callers would wait for thousands of refused writes (BenchmarkColdStart in bench).
	made sync.Map
}

// Claims is for [held.TableOf].
func (s *locks) Claims() *held.Table { return s.table }

// prepare makes the locks of a new session. It fails if the session may not be used for
// locks.
func (c *Client) prepare(ctx context.Context, s *session.Session) (any, error) {
	l := &locks{session: s, table: held.NewTable(&c.core, s), client: c, log: c.cfg.Logger}
	return session.Within(ctx, s.Status, func() (any, error) {
		if err := l.learnDomain(); err != nil {
			return nil, err
		}
		if err := l.agreeOnHome(); err != nil {
			return nil, err
		}
		if err := l.followFormer(); err != nil {
			return nil, err
		}
		s.Status.Go(l.followDomain)
		there, _ := s.Reads.Look(c.cfg.rootPath(), session.OfChildren) // after an error all seem to be missing
		for _, name := range there.Names {
			l.made.Store(name, true)
		}
		return l, nil
	})
}

// usable returns the locks of the session if it can serve callers now, and
// driver.ErrUnavailable if not. It never waits.
func (c *Client) usable() (*locks, error) {
	s, err := c.core.Keeper.Usable()
	if err != nil {
		return nil, err
	}
	return s.Local().(*locks), nil
}

// ErrHomeMismatch says that another Config.Home is in use with the locks below
// Config.Root. To change the home, stop all instances, settle all open records, and delete
// the znode "home" below the root. Under another home the locks are of another domain.
var ErrHomeMismatch = errors.New("zookeeper: another Config.Home is in use with these locks")

// agreeOnHome compares the home with the home of the root's other clients. The first client
// writes it down. A client without the permission to read or write there has no use for
// the locks, and goes on.
func (s *locks) agreeOnHome() error {
	path, home := s.client.cfg.homePath(), s.client.cfg.Chroot+s.client.cfg.Home
	inUse, err := s.agree(path, home)
	switch {
	case session.Answered(err):
		return nil
	case err == nil && inUse != home:
		return fmt.Errorf("%w: %s says %q, and this client has %q", ErrHomeMismatch, path, inUse, home)
	}
	return err
}

// agree returns the data of a persistent znode on which all clients agree. If the znode is
// missing, agree makes it with the proposal as its data, and the znodes above it.
func (s *locks) agree(path, proposal string) (string, error) {
	for {
		n, err := s.session.Reads.Decide(path, session.OfNode)
		if err != nil || n.Exists {
			return string(n.Data), err
		}
		r := s.session.Writes.Do(s.table.Client.Persistent(path, []byte(proposal)))
		switch {
		case r.RefusedBy(zk.ErrNoNode):
			if err := s.table.Parents.EnsureParents(path); err != nil {
				return "", err
			}
		case r.Outcome == session.Ended:
			return "", fmt.Errorf("%w: %w", driver.ErrUnavailable, r.Err)
		case r.Outcome == session.Refused && !r.RefusedBy(zk.ErrNodeExists):
			return "", fmt.Errorf("zookeeper: create %s: %w", path, r.Err)
		}
	}
}
