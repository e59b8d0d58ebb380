package recipes

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Revoked returns a channel that is closed when the holder was asked to let go
// ([Mutex.Revoke]). It is a request. Nothing happens unless the holder releases the lock,
// and a holder that does not look is not disturbed. The channel is not closed for the end of
// the lease, so wait for Done beside it.
//
// The first call makes the holder watch its own znode, which costs a read. It notices an
// earlier request as well. A request to another place of this client, whose lock has gone
// to this one, is passed on.
//
// The idea is that of the revocable locks of Apache Curator's InterProcessMutex.
func (l *Lease) Revoked() <-chan struct{} {
	l.attend()
	return l.place.wish()
}

// wish is the channel of Revoked.
func (p *place) wish() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.revoked == nil {
		p.revoked = make(chan struct{})
	}
	return p.revoked
}

// askedFor notes that the holder was asked to let go.
func (p *place) askedFor() {
	ch := p.wish()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked {
		p.asked = true
		close(ch)
	}
}

// attend has a holder watch its own znode from now on: for requests to let go, and for its
// end.
func (l *Lease) attend() {
	l.place.mu.Lock()
	defer l.place.mu.Unlock()
	if !l.place.attended {
		l.place.attended = true
		l.Table().Go(l.watchOwn)
	}
}

func (l *Lease) watchOwn() {
	t, path := l.Table(), l.place.path()
	for {
		w := t.Watch(path, session.OnNode, nil)
		select {
		case <-w.Armed():
		case <-l.Done():
			return
		}
		n, err := t.Decide(path, session.OfNode) // what was there when the watch was, or later
		switch {
		case err != nil || l.Over() != nil:
			return
		case !l.Is(n):
			_ = l.Lose()
			return
		case revocation(n.Data):
			l.place.askedFor()
		}
		select {
		case <-w.Woken():
		case <-l.Done():
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

func (ln *lineup) revoke(ctx context.Context) error {
	for {
		t, all, err := ln.roll(ctx)
		if err != nil || len(all) == 0 {
			return err
		}
		path := ln.path + "/" + all[0].Name
		asked, err := session.Within(ctx, t.Session, func() (bool, error) { return askToLetGo(t, path) })
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
func askToLetGo(t *held.Table, path string) (asked bool, err error) {
	maybe := false // a request was sent, and is not known to have been made
	for range held.MaxTries {
		n, err := t.Decide(path, session.OfNode)
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
		r := t.Write(&zk.SetDataRequest{Path: path, Data: data, Version: n.Version})
		switch {
		case r.Outcome == session.Applied:
			return true, nil
		case r.RefusedBy(zk.ErrNoNode):
			return maybe, nil
		case r.Outcome == session.Unknown, r.Outcome == session.Unsent:
			maybe = maybe || r.Outcome == session.Unknown
			err = t.Settled()
		case !r.RefusedBy(zk.ErrBadVersion):
			return false, r.Err
		}
		if err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("no certain answer %d times", held.MaxTries)
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
