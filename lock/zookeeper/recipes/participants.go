package recipes

import (
	"context"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Participant is one of those who have a lock or wait for it, as it described
// itself: for operators.
type Participant struct {
	Host     string
	PID      int
	Instance string     // a Client; a new one after every start
	Name     string     // of a candidate in an election, "" otherwise
	Role     string     // of an RWMutex: RoleRead or RoleWrite; "" otherwise
	Permits  int        // of a Semaphore: how many it has or wants; 0 otherwise
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

// Participants lists those who have the lock or wait for it, the holder first,
// then the others in the order of their turns. It is a snapshot, some of it
// older than the rest, and no error if there is nobody: it shows every place
// that was taken before the call and not given up since. With many waiters it is
// many reads.
//
// The first one is the holder in the eyes of the servers. It may not know yet,
// or not be there any more, for a session time-out at most.
//
// The error wraps idem.ErrUnavailable, with the cause of ctx where that ended.
func (m *Mutex) Participants(ctx context.Context) ([]Participant, error) {
	return m.ln.participants(ctx, first)
}

// Participants lists those who have permits or wait for them, in the order in
// which they asked, see [Mutex.Participants].
func (sem *Semaphore) Participants(ctx context.Context) ([]Participant, error) {
	them, err := sem.ln.participants(ctx, sem.enough)
	for i := range them {
		them[i].Permits = sem.wants(line.Position{Role: them[i].Role})
		them[i].Role = ""
	}
	return them, err
}

// Participants lists the readers and writers that have the lock or wait for it, in
// the order in which they asked, see [Mutex.Participants].
func (m *RWMutex) Participants(ctx context.Context) ([]Participant, error) {
	return m.ln.participants(ctx, func(all []line.Position, me int) (turn bool, behind int) {
		if all[me].Role == reading {
			return behindWriters(all, me)
		}
		return first(all, me)
	})
}

func (ln *lineup) participants(ctx context.Context, r rule) ([]Participant, error) {
	t, all, err := ln.roll(ctx)
	if err != nil {
		return nil, err
	}
	there, them := all[:0], make([]Participant, 0, len(all))
	for _, pos := range all {
		n, err := ln.placeAt(ctx, t, pos)
		switch {
		case err != nil:
			return nil, err
		case n.Exists:
			there = append(there, pos)
			p := participant(t, pos, n)
			p.Holds, _ = r(there, len(there)-1)
			them = append(them, p)
		}
	}
	return them, nil
}

func participant(t *held.Table, pos line.Position, n session.Hint) Participant {
	o := parseCandidacy(n.Data)
	role := pos.Role
	if role == exclusive || role == candidateRole {
		role = ""
	}
	return Participant{
		Host: o.Host, PID: o.PID, Instance: o.Instance, Name: o.Candidate, Role: role,
		Place: pos.Seq, Fence: t.Fence(n.Czxid),
		Revoked: revocation(n.Data),
	}
}
