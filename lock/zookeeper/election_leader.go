package zookeeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// ErrNoLeader is returned by [Election.Leader] when nobody is in office.
var ErrNoLeader = errors.New("zookeeper: there is no leader")

// Leader is who is in office, as it described itself.
type Leader struct {
	Name     string // as given to Client.Election
	Host     string
	PID      int
	Instance string     // a Client; a new one after every start
	Fence    idem.Fence // grows from one leader to the next; zero where there is none
}

// Leader returns the leader in office now, or ErrNoLeader. It is the leader in
// the eyes of the servers, who may not know yet, or not be there any more, for a
// session time-out at most.
//
// Other errors wrap idem.ErrUnavailable, with the cause of ctx where that ended.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	for {
		s, all, err := e.ln.roll(ctx)
		if err != nil {
			return Leader{}, err
		}
		if len(all) == 0 {
			return Leader{}, fmt.Errorf("%w: %s", ErrNoLeader, e.ln.name)
		}
		n, err := s.placeAt(ctx, e.ln, all[0])
		if err != nil || n.Exists {
			return s.leader(n), err
		}
	}
}

func (s *locks) leader(n session.Hint) Leader {
	if !n.Exists {
		return Leader{}
	}
	o := parseCandidacy(n.Data)
	return Leader{
		Name: o.Candidate, Host: o.Host, PID: o.PID, Instance: o.Instance,
		Fence: s.fence(n.Czxid),
	}
}
