package zookeeper

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Revoked returns a channel that is closed when somebody has asked the holder to
// let go ([Mutex.Revoke]). It is a request: nothing happens unless the holder
// releases the lock, and one that does not look is not disturbed. The channel
// is not closed for the end of the lease, so wait for Done beside it; nor is it
// ever closed for a lease of a [Locker].
//
// The first call makes the holder watch its own znode, at the price of a read. A
// request from before is noticed as well. One that came to another place of this
// client, whose lock has been handed on to this one already, is passed on.
//
// The idea is that of the revocable locks of Apache Curator's InterProcessMutex.
func (l *Lease) Revoked() <-chan struct{} {
	if l.place != nil {
		l.attend()
	}
	return l.request()
}

// request is the channel of Revoked.
func (l *Lease) request() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revoked == nil {
		l.revoked = make(chan struct{})
	}
	return l.revoked
}

// askedFor notes that the holder was asked to let go.
func (l *Lease) askedFor() {
	ch := l.request()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.asked {
		l.asked = true
		close(ch)
	}
}

// unrevoked is the version of a place's znode that carries no request. Nothing else
// ever changes its data.
const unrevoked = 0

// attend has a holder look after its own znode, from now on: for requests to
// let go, and for its disappearance.
func (l *Lease) attend() { l.attended.Do(func() { l.s.Go(l.lookAfter) }) }

func (l *Lease) lookAfter() {
	s := l.s
	for {
		w := s.Watch(l.slot.path, session.OnNode, nil)
		select {
		case <-w.Armed():
		case <-l.done:
			return
		}
		n, err := s.Decide(l.slot.path, session.OfNode) // what was there when the watch was, or later
		switch {
		case err != nil || l.over() != nil:
			return
		case !n.Exists || n.Czxid != l.czxid:
			s.lose(l, fmt.Errorf("%w: its znode is gone", idem.ErrLeaseLost))
			return
		case revocation(n.Data):
			l.askedFor()
		}
		select {
		case <-w.Woken():
		case <-l.done:
			return
		}
	}
}

// Revoke asks the holder of the lock to let go: its [Lease.Revoked] is closed.
// Whether and when it does is its own affair. A lock that nobody has is no error.
// A holder that leaves after it was asked has done its part, and the next one is not
// asked. Where the lock was handed on before the request came, the request goes to
// the one who has it then.
//
// The error wraps idem.ErrUnavailable; the request may have been made then.
func (m *Mutex) Revoke(ctx context.Context) error { return m.ln.revoke(ctx) }

func (ln *line) revoke(ctx context.Context) error {
	for {
		s, all, err := ln.roll(ctx)
		if err != nil || len(all) == 0 {
			return err
		}
		path := ln.path + "/" + all[0].name
		asked, err := session.Within(ctx, s.Session, func() (bool, error) { return s.askToLetGo(path) })
		if err != nil {
			return fmt.Errorf("%w: revoke %s: %w", idem.ErrUnavailable, ln.name, err)
		}
		if asked {
			return nil
		}
	}
}

// askToLetGo writes the request into the znode of a holder. It is false where that is
// gone, and so was not asked. Names of places are never used again, so that it cannot
// reach another one. Making the request twice does no harm.
func (s *locks) askToLetGo(path string) (asked bool, err error) {
	maybe := false // a request was sent, and is not known to have been made
	for range maxTries {
		n, err := s.Decide(path, session.OfNode)
		switch {
		case err != nil:
			return false, err
		case !n.Exists:
			return maybe, nil
		case revocation(n.Data):
			return true, nil
		}
		data, err := withRevocation(n.Data)
		if err != nil {
			return false, err
		}
		r := s.Write(&zk.SetDataRequest{Path: path, Data: data, Version: n.Version})
		switch {
		case r.Outcome == session.Applied:
			return true, nil
		case r.RefusedBy(zk.ErrNoNode):
			return maybe, nil
		case r.Outcome == session.Unknown, r.Outcome == session.Unsent:
			maybe = maybe || r.Outcome == session.Unknown
			err = s.Settled()
		case !r.RefusedBy(zk.ErrBadVersion):
			return false, r.Err
		}
		if err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("no certain answer %d times", maxTries)
}

// revokedField is the field of a place's data, beside those of its owner, that
// says that its owner is asked to let go.
const revokedField = "revoked"

func revocation(data []byte) bool {
	var fields map[string]json.RawMessage
	return json.Unmarshal(data, &fields) == nil && string(fields[revokedField]) == "true"
}

// withRevocation adds the request and leaves all else as it is.
func withRevocation(data []byte) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || fields == nil {
		return nil, fmt.Errorf("zookeeper: a holder's znode has data that is not its owner's: %w", err)
	}
	fields[revokedField] = json.RawMessage("true")
	return json.Marshal(fields)
}
