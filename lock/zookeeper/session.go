package zookeeper

import (
	"context"
	"log/slog"
	"sync"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// locks is what a client has, or wants, through one session: the right to write at a
// path (slots.go), and what it knows of the parents of locks.
//
// mu may be held when the session's lock or a lease's lock is taken, not the other way
// round. It is never held across a call to ZooKeeper or to the logger.
type locks struct {
	*session.Session

	client *Client
	cfg    *Config
	log    *slog.Logger
	domain string

	mu      sync.Mutex
	slots   map[string]*slot
	frees   uint64 // slots that were given up
	waits   map[string]*lockWait
	parents lockParents
}

// prepare makes what the client keeps for a new session. It fails if the session may not
// be used for the locks.
func (c *Client) prepare(ctx context.Context, s *session.Session) (any, error) {
	l := &locks{
		Session: s, client: c, cfg: &c.cfg, log: c.cfg.Logger,
		slots: make(map[string]*slot), waits: make(map[string]*lockWait), parents: newLockParents(),
	}
	if err := l.learnDomain(ctx); err != nil {
		return nil, err
	}
	return l, l.agreeOnBase(ctx)
}

// usable returns the locks of the session if it can serve callers now, and
// idem.ErrUnavailable if not. It never waits.
func (c *Client) usable() (*locks, error) {
	s, err := c.keeper.Usable()
	if err != nil {
		return nil, err
	}
	return s.Local().(*locks), nil
}
