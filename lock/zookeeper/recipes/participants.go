package recipes

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Participant is the holder of a lock or a waiter, as it described itself. It is information
// for operators.
type Participant struct {
	Host     string
	PID      int
	Instance string       // of the Client, new after every start
	Name     string       // of a candidate in an election, otherwise ""
	Role     string       // RoleRead or RoleWrite in an RWMutex, otherwise ""
	Permits  int          // how many it has or wants of a Semaphore, otherwise 0
	Holds    bool         // it has the lock, or its permits, as far as the line tells
	Place    int32        // in line, as numbered by the servers
	Fence    driver.Fence // of its lease, once it has the lock
	Revoked  bool         // it was asked to let go, see Mutex.Revoke
}

// wholeLine is for callers of participants who want all of them.
const wholeLine = math.MaxInt

// participants describes the first places of the line, at most so many. If all of them have
// gone meanwhile, it looks again, because other callers may have come.
func (ln *lineup) participants(ctx context.Context, r rule, most int) ([]Participant, error) {
	for {
		t, all, err := ln.roll(ctx)
		if err != nil || len(all) == 0 {
			return nil, err
		}
		var there []line.Position
		var them []Participant
		for _, pos := range all[:min(most, len(all))] {
			p, ok, err := ln.participant(ctx, t, pos)
			if err != nil {
				return nil, err
			}
			if ok {
				there = append(there, pos)
				p.Holds, _ = r(there, len(there)-1)
				them = append(them, p)
			}
		}
		if len(them) > 0 {
			return them, nil
		}
	}
}

// participant reads a place. ok is false if it has gone.
func (ln *lineup) participant(ctx context.Context, t *held.Table, pos line.Position) (p Participant, ok bool, err error) {
	n, err := session.Within(ctx, t.Session.Status, func() (session.Hint, error) {
		return t.Session.Reads.Look(ln.path+"/"+pos.Name, session.OfNode)
	})
	if err != nil {
		return Participant{}, false, fmt.Errorf("%w: %s: %w", driver.ErrUnavailable, ln.name, err)
	}
	var o occupant
	if json.Unmarshal(n.Data, &o) != nil {
		o = occupant{} // another application's data
	}
	p = Participant{
		Host: o.Host, PID: o.PID, Instance: o.Instance, Name: o.Candidate, Role: pos.Role,
		Place: pos.Seq, Fence: pos.Fence(t, n.Czxid), Revoked: revoked(n.Node),
	}
	if p.Role == exclusive || p.Role == candidateRole {
		p.Role = ""
	}
	return p, n.Exists, nil
}
