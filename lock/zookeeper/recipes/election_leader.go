package recipes

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// ErrNoLeader is returned by [Election.Leader] when nobody is in office.
var ErrNoLeader = errors.New("zookeeper: there is no leader")

// Leader is who is in office, as it described itself.
type Leader struct {
	Name     string // as given to NewElection
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
		t, all, err := e.ln.roll(ctx)
		if err != nil {
			return Leader{}, err
		}
		if len(all) == 0 {
			return Leader{}, fmt.Errorf("%w: %s", ErrNoLeader, e.ln.name)
		}
		n, err := e.ln.placeAt(ctx, t, all[0])
		if err != nil || n.Exists {
			return leaderOf(t, n), err
		}
	}
}

func leaderOf(t *held.Table, n session.Hint) Leader {
	if !n.Exists {
		return Leader{}
	}
	o := parseCandidacy(n.Data)
	return Leader{
		Name: o.Candidate, Host: o.Host, PID: o.PID, Instance: o.Instance,
		Fence: t.Fence(n.Czxid),
	}
}
