package recipes

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Participant is the holder of a lock or a waiter, as it described itself. It is information
// for operators.
type Participant struct {
	Host     string
	PID      int
	Instance string     // of the Client, new after every start
	Name     string     // of a candidate in an election, otherwise ""
	Role     string     // RoleRead or RoleWrite in an RWMutex, otherwise ""
	Permits  int        // how many it has or wants of a Semaphore, otherwise 0
	Holds    bool       // it has the lock, or its permits, as far as the line tells
	Place    int32      // in line, as numbered by the servers
	Fence    idem.Fence // of its lease, once it has the lock
	Revoked  bool       // it was asked to let go, see Mutex.Revoke
}

// Roles of an RWMutex's participants.
const (
	RoleRead  = reading
	RoleWrite = writing
)

// Participants lists the holder first and then the waiters in the order of their turns. The
// list is a snapshot, and some of it is older than the rest. It shows every place
// taken before the call and not given up since. An empty list is no error. A long line costs
// many reads.
//
// The first participant is the holder for the servers. For at most a session time-out it may
// not know yet, or be gone already.
//
// The error wraps idem.ErrUnavailable, and the cause of ctx if ctx has ended.
func (m *Mutex) Participants(ctx context.Context) ([]Participant, error) {
	return m.ln.participants(ctx, first, math.MaxInt)
}

// Participants lists the holders of permits and the waiters, in the order in which they asked.
// See [Mutex.Participants].
func (sem *Semaphore) Participants(ctx context.Context) ([]Participant, error) {
	them, err := sem.ln.participants(ctx, sem.enough, math.MaxInt)
	for i := range them {
		them[i].Permits = sem.wants(line.Position{Role: them[i].Role})
		them[i].Role = ""
	}
	return them, err
}

// Participants lists the readers and writers in line, in the order in which they asked. The
// first ones have the lock. See [Mutex.Participants].
func (m *RWMutex) Participants(ctx context.Context) ([]Participant, error) {
	return m.ln.participants(ctx, func(all []line.Position, me int) (turn bool, behind int) {
		if all[me].Role == reading {
			return behindWriters(all, me)
		}
		return first(all, me)
	}, math.MaxInt)
}

// Participants lists the leader and the candidates, see [Mutex.Participants].
func (e *Election) Participants(ctx context.Context) ([]Participant, error) {
	return e.ln.participants(ctx, first, math.MaxInt)
}

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
	n, err := session.Within(ctx, t.Session, func() (session.Hint, error) {
		return t.Look(ln.path+"/"+pos.Name, session.OfNode)
	})
	if err != nil {
		return Participant{}, false, fmt.Errorf("%w: %s: %w", idem.ErrUnavailable, ln.name, err)
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
