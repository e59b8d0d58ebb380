package zookeeper

import (
	"context"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// locks is what lockers have in one session.
type locks struct {
	*held.Table
	client *Client

	parents lockParents
	waits   lockWaits
}

// prepare makes what the client keeps for a new session. It fails if the session may not
// be used for the locks.
func (c *Client) prepare(ctx context.Context, s *session.Session) (any, error) {
	l := &locks{Table: held.NewTable(&c.core, s), client: c, parents: lockParents{looked: make(chan struct{})}}
	if err := l.learnDomain(ctx); err != nil {
		return nil, err
	}
	return l, l.agreeOnBase(ctx)
}

// usable returns the locks of the session if it can serve callers now, and
// idem.ErrUnavailable if not. It never waits.
func (c *Client) usable() (*locks, error) {
	s, err := c.core.Keeper.Usable()
	if err != nil {
		return nil, err
	}
	return s.Local().(*locks), nil
}
